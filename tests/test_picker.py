"""The picker: its state for a cell, its messages, and the commands that show it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import types

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nbmgpu
from nbmgpu.advisor.model_advisor import ModelAdvisor
from nbmgpu.advisor.picker_state import PickerController, describe
from nbmgpu.advisor.training_objects import find_training_objects
from nbmgpu.errors import OptionError
from nbmgpu.frontend import commands
from nbmgpu.frontend.completer import complete
from nbmgpu.ui import assets
from nbmgpu.ui.picker import Picker, describe_cell

CELL = """for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


@pytest.fixture
def names():
    model = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    data = TensorDataset(torch.randn(64, 20), torch.randint(0, 3, (64,)))
    return {
        "nn": nn,
        "teacher": nn.Linear(20, 3),
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "loader": DataLoader(data, batch_size=16, shuffle=True),
    }


def test_the_subject_lists_the_names_read(names):
    state = describe(CELL, names)
    assert state.subject == "model, optimizer, loader"
    assert state.problem == ""
    assert state.advice.recommended == "ddp"
    assert any("8 samples on each rank" in note for note in state.advice.notes)
    json.dumps(state.plain(), allow_nan=False)


def test_the_model_of_the_optimizer_is_chosen(names):
    cell = CELL.replace("model(x)", "model(x) - teacher(x)").replace("\n", "\n", 1)
    assert describe("teacher(model)\n" + cell, names).subject.startswith("model,")


def test_options_of_the_cells_line_are_kept(names):
    line = "%%mgpu -s fsdp -g 4 --seed 3 --pull loss --accumulate 2\n"
    state = describe(line + CELL, names)
    assert state.selected == "fsdp"
    assert (state.controls.gpus, state.controls.accumulate) == (4, 2)
    assert state.advice.row("zero1").line == (
        "%%mgpu --strategy zero1 --gpus 4 --seed 3 --pull loss --accumulate 2"
    )


def test_controls_change_the_advice(names):
    state = describe(CELL, names, {"gpus": 4, "batch": "per-rank"})
    assert "--gpus 4 --batch per-rank" in state.advice.line
    assert any("16 samples on each rank" in note for note in state.advice.notes)
    assert describe(CELL, names, {"precision": "fp16"}).advice.row("zero2").line == ""


def test_invalid_settings_are_reported_as_a_problem(names):
    state = describe(CELL, names, {"gpus": 4000})
    assert state.advice is None
    assert "too many" in state.problem


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("print(nn)", "reads no model of this notebook"),
        ("modle(x)", "reads 'modle'"),
        ("for x in", "invalid syntax"),
    ],
)
def test_strategies_are_offered_without_a_model(names, cell, text):
    state = describe(cell, names)
    assert text in state.subject
    assert state.advice.line == "%%mgpu --strategy ddp --gpus 2"
    assert {row.fits for row in state.advice.rows if row.line} == {"unknown"}


def test_describing_a_cell_is_fast_and_has_no_side_effects(names):
    describe(CELL, names)  # the first call imports more of torch
    model = names["model"].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate()
    seconds = min(_timed(names) for _ in range(8))
    assert seconds < 0.3
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert not model.training
    assert not names["optimizer"].state
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def _timed(names):
    start = time.perf_counter()
    describe(CELL, names)
    return time.perf_counter() - start


def test_torch_is_not_imported_for_a_notebook_without_torch():
    code = (
        "import sys; from nbmgpu.ui.picker import describe_cell; "
        "state = describe_cell('x = 1'); assert 'torch' not in sys.modules, 'imported'; "
        "print(state['subject'], '|', state['advice']['line'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "torch is not imported yet" in done.stdout
    assert "%%mgpu --strategy ddp" in done.stdout


def test_importing_nbmgpu_does_not_import_torch():
    code = "import sys, nbmgpu; assert 'torch' not in sys.modules; nbmgpu.advise"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_widget_answers_messages(names):
    picker = nbmgpu.picker(names["model"], names["optimizer"], names["loader"])
    assert isinstance(picker, Picker)
    assert picker.line == "%%mgpu --strategy ddp --gpus 2"
    controls = picker.state["controls"] | {"accumulate": 4}
    picker._handle_custom_msg({"kind": "choose", "controls": controls}, [])
    assert picker.state["advice"]["line"] == "%%mgpu --strategy ddp --gpus 2 --accumulate 4"
    picker._handle_custom_msg({"kind": "nonsense"}, [])
    picker._handle_custom_msg({"kind": "choose", "controls": controls | {"accumulate": 0}}, [])
    assert "0" in picker.state["problem"]
    assert picker.state["advice"] is None


def test_a_picker_without_its_script_shows_a_message(tmp_path, monkeypatch):
    monkeypatch.setattr(assets, "FOLDER", tmp_path)
    assert "is not built" in str(assets.script("picker"))


@pytest.fixture
def shell(names):
    main = sys.modules["__main__"]
    shell = InteractiveShell.instance()
    shell.user_ns |= names
    yield shell
    InteractiveShell.clear_instance()
    sys.modules["__main__"] = main


def test_advise_and_pick_commands(shell):
    advice = commands.advise("model optimizer loader")
    assert advice.recommended == "ddp"
    assert commands.advise("").model.startswith("Sequential")
    assert commands.advise("model, optimizer").recommended == "ddp"
    assert commands.advise("model --gpus 4 --cpu --precision bf16").ranks == 4
    assert commands.advise("--gpus 4 --cpu").line.endswith("--gpus 4 --cpu")
    with pytest.raises(OptionError, match="no flag --gpuss"):
        commands.advise("model --gpuss 4")
    assert commands.pick("model --accumulate 4").state["controls"]["accumulate"] == 4
    picker = commands.pick("model")
    assert picker.state["subject"] == "model"
    assert describe_cell("teacher(1)")["subject"] == "teacher"


def test_unknown_names_raise_errors(names):
    with pytest.raises(OptionError, match="There is no 'modle'") as raised:
        find_training_objects(["modle"], names)
    assert "%mgpu advise model" in str(raised.value)
    with pytest.raises(OptionError, match="'model' has no 'modle'"):
        find_training_objects(["model.modle"], names)
    with pytest.raises(OptionError, match=r"loader holds no torch\.nn\.Module"):
        find_training_objects(["loader"], names)
    with pytest.raises(OptionError, match="has no model yet"):
        find_training_objects([], {})


def test_attributes_can_be_named(names):
    holder = types.SimpleNamespace(inner=names["model"])
    assert find_training_objects(["holder.inner"], {"holder": holder}).description == "holder.inner"


def test_a_trainer_provides_model_and_data(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(**sizes, intermediate_size=16, vocab_size=50))
    data = [{"input_ids": torch.arange(6), "labels": place % 2} for place in range(8)]
    asked = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    trainer = Trainer(model, asked, train_dataset=data)
    state = describe("trainer.train()", {"trainer": trainer})
    assert state.subject == "trainer.model, trainer.get_train_dataloader()"
    assert state.advice.recommended == "ddp"
    assert not [each for each in state.advice.notes if "no batch" in each]
    assert find_training_objects(["trainer"], {"trainer": trainer}).advisor().model is model
    mine = types.SimpleNamespace(trainer=trainer)
    assert (
        find_training_objects(["mine.trainer"], {"mine": mine}).loader
        == "mine.trainer.get_train_dataloader()"
    )
    trainer.train_dataset = None
    assert find_training_objects(["trainer"], {"trainer": trainer}).description == "trainer.model"


def test_the_data_of_a_trainer_are_used_for_its_own_model_only(tmp_path):
    from transformers import Trainer, TrainingArguments

    asked = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    trainer = Trainer(nn.Linear(2, 2), asked, train_dataset=[{"x": 1.0}] * 4)
    names = {"trainer": trainer, "large": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))}
    assert find_training_objects([], names).description == "large"
    del names["large"]
    assert (
        find_training_objects([], names | {"mine": trainer.model}).description
        == "mine, trainer.get_train_dataloader()"
    )


def test_models_optimizers_and_loaders_are_completed(names):
    class Context:
        full_text = text_until_cursor = "%mgpu advise model o"
        cursor_line = 0

    found = complete(Context(), names)
    assert [c.text for c in found["completions"]] == ["optimizer"]


def test_one_advisor_answers_many_requests(names):
    controller = PickerController(
        ModelAdvisor(names["model"], names["optimizer"], loader=names["loader"])
    )
    first = controller.choose({"gpus": 2})
    second = controller.choose({"gpus": 1})
    assert first.advice.line != second.advice.line
    assert "one device" in second.advice.reason
