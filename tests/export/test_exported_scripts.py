"""Exported scripts, run by torchrun without nbmgpu, train to the weights of nbmgpu's ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from exporting import Notebook, compare, torchrun
from idioms.notebook import working_directory
from table import (
    BY_NAME,
    DEFINITIONS,
    IMPORTS,
    LOADER,
    MODEL,
    SGD,
    TABLE,
    TENSOR_PARALLEL,
    TRAIN,
    Exported,
)

OFTEN = {
    "an uneven batch size", "evaluation and a plateau", "functions of earlier cells",
    "a model trained in an earlier cell", "all made in the cell", "two models",
}  # fmt: skip
"""What is run at each change; the others are marked ``matrix``."""

OTHERS = [
    ("fsdp", "functions of earlier cells"),
    ("zero1", "a scheduler"),
    ("fsdp", "an uneven batch size"),
    ("fsdp", "clipping"),
    ("fsdp", "Adam"),
    ("fsdp", "the best state"),
    ("fsdp", "two models"),
    ("fsdp", "a model of transformers"),
    ("zero1", "Adam"),
    ("zero1", "all made in the cell"),
    ("zero1", "frozen layers and parameter groups"),
    ("zero2", "Adam"),
    ("deepspeed_stage_2", "functions of earlier cells"),
    ("deepspeed_stage_3", "a scheduler"),
    ("deepspeed_stage_3", "clipping"),
    ("deepspeed_stage_2", "a scheduler made in the cell"),
    ("deepspeed_stage_2", "a step for each epoch, and a scheduler's for each batch"),
    ("deepspeed_stage_1", "accumulation"),
    ("deepspeed_stage_2", "an uneven batch size"),
    ("deepspeed_stage_3", "evaluation and a plateau"),
    ("deepspeed_stage_2_offload", "Adam"),
    ("deepspeed_stage_3", "a model of transformers"),
    ("tp", "functions of earlier cells"),
    ("tp", "clipping"),
    ("tp", "a model trained in an earlier cell"),
    ("tp", "evaluation and a plateau"),
    ("tp", "two models"),
    ("tp", "a model of transformers"),
    ("tp", "a generator"),
    ("tp", "the best state"),
    ("fsdp", "a model trained in an earlier cell"),
    ("fsdp", "all made in the cell"),
    ("fsdp", "groups of listed parameters"),
    ("fsdp", "an optimizer of what requires gradients"),
    ("fsdp", "a checkpoint of an object"),
    ("fsdp", "the norm of gradients"),
    ("tp", "groups of listed parameters"),
    ("tp", "an optimizer of what requires gradients"),
    ("tp", "a checkpoint of an object"),
    ("tp", "a checkpoint that is read"),
    ("tp", "the norm of gradients"),
    ("deepspeed_stage_2", "groups of listed parameters"),
    ("deepspeed_stage_2", "names of parameters"),
    ("deepspeed_stage_3", "a checkpoint of an object"),
    ("deepspeed_stage_2", "tqdm of notebooks"),
    ("deepspeed_stage_2", "accumulation that continues"),
    ("deepspeed_stage_2", "accumulation that clips"),
]


def marked(strategy: str, entry: Exported, often: bool) -> object:
    marks = () if often else (pytest.mark.matrix,)
    return pytest.param(strategy, entry, id=f"{strategy}, {entry}", marks=marks)


CASES = [
    *(marked("ddp", entry, entry.name in OFTEN) for entry in TABLE),
    *(marked(s, BY_NAME[name], place < 2) for place, (s, name) in enumerate(OTHERS)),
    *(marked("tp", entry, place == 0) for place, entry in enumerate(TENSOR_PARALLEL)),
]


@pytest.mark.parametrize(("strategy", "entry"), CASES)
def test_the_script_trains_as_ranks_do(strategy: str, entry: Exported, tmp_path: Path) -> None:
    exported, difference = compare(
        [*entry.cells], entry.cell, tmp_path, models=entry.models, strategy=strategy
    )
    text = exported.path.read_text()
    assert difference < 1e-5, text
    if strategy == "ddp" or entry in TENSOR_PARALLEL:
        for source in entry.expected:
            assert source in text, text
        assert len(exported.notes) == entry.notes, exported.notes
    check_with_ruff(exported.path)


def check_with_ruff(script: Path) -> None:
    """Check that a script has no unused import, no unknown name, no line that is too long."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length", "110"]
    command += ["--select", "E,F,I,B006", "--ignore", "E501", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + script.read_text()


TRACKED = """
writer = SummaryWriter("tb")
""" + TRAIN.replace(
    "        losses.append(loss.item())",
    '        losses.append(loss.item())\n        writer.add_scalar("a", losses[-1], len(losses))'
    "\n        nbmgpu.log(loss=loss.item())  # a curve"
    "\n    if epoch:\n        nbmgpu.log(epoch=epoch)",
)  # fmt: skip


@pytest.mark.parametrize("made", ["in the cell", "before it"])
def test_rank_0_alone_writes_for_tensorboard(made: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    cells = [IMPORTS, "import nbmgpu\nfrom torch.utils.tensorboard import SummaryWriter"]
    cells += [DEFINITIONS, f"{LOADER}\n{MODEL}\n{SGD}"]
    first, _, loop = TRACKED.strip().partition("\n")
    if made == "before it":
        cells.append(first.replace('"tb"', repr(str(tmp_path / "tb"))))
    notebook = Notebook()
    with working_directory(tmp_path / "notebook"):
        notebook.run(*cells)
    cell = TRACKED if made == "in the cell" else loop
    exported = notebook.export(cell, tmp_path / "train.py")
    text = exported.path.read_text()
    assert "if dist.get_rank() == 0 else SilentWriter()" in text
    assert "nbmgpu.log" not in text
    assert text.count("pass\n") == 2, text  # of the helper, and of the block of one line
    before = set((tmp_path / "tb").glob("events*"))
    torchrun(exported.path)
    assert len(set((tmp_path / "tb").glob("events*")) - before) == 1
    check_with_ruff(exported.path)


def test_other_ranks_disable_wandb(tmp_path: Path) -> None:
    notebook = Notebook()
    notebook.run(IMPORTS, DEFINITIONS, f"{LOADER}\n{MODEL}\n{SGD}")
    cell = (
        f'import wandb\nrun = wandb.init(project="x")\n{TRAIN}\nwandb.log({{"loss": losses[-1]}})'
    )
    text = notebook.export(cell, tmp_path / "train.py").path.read_text()
    assert 'wandb.init(project="x", mode=None if dist.get_rank() == 0 else "disabled")' in text
