"""What cannot be exported is refused with what to do, and what may differ is a note."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from exporting import Notebook
from table import DEFINITIONS, IMPORTS, LOADER, MODEL, SGD, TRAIN

import nbmgpu
from nbmgpu.errors import NbmgpuError, OptionError
from nbmgpu.exports.writing import write_script
from nbmgpu.frontend.export_command import parse


@pytest.fixture(scope="module")
def notebook() -> Notebook:
    made = Notebook()
    made.run(IMPORTS, DEFINITIONS, LOADER, f"{MODEL}\n{SGD}")
    return made


CLIPPED = TRAIN.replace(
    "opt.step()", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        opt.step()"
)

REFUSED = {
    "pp": ({"strategy": "pp"}, TRAIN, "--strategy ddp or zero1 or fsdp"),
    "layers that no style splits": (
        {"strategy": "tp"},
        "small = nn.LayerNorm(8)\nsmall(X).sum().backward()",
        "make the model in an earlier cell",
    ),
    "a share under tp": (
        {"strategy": "tp"},
        "import nbmgpu\n" + TRAIN.replace("in loader", "in nbmgpu.share(X, Y)"),
        "remove nbmgpu.share",
    ),
    "a model made in the cell, for an engine": (
        {"strategy": "deepspeed_stage_2"},
        f"net = Net()\nopt = torch.optim.SGD(net.parameters(), 0.1)\n{TRAIN}",
        "in an earlier cell",
    ),
    "gradients under DeepSpeed": (
        {"strategy": "deepspeed_stage_2"},
        TRAIN.replace("opt.step()", "print(model.head.weight.grad)\n        opt.step()"),
        "reads gradients",
    ),
    "clipping under a condition": (
        {"strategy": "deepspeed_stage_3"},
        TRAIN.replace(
            "opt.step()",
            "if epoch:\n            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
            "        opt.step()",
        ),
        "conditional or read",
    ),
    "precision under DeepSpeed": (
        {"strategy": "deepspeed_stage_2", "precision": "bf16"},
        TRAIN,
        "--precision bf16 cannot",
    ),
    "LBFGS under DeepSpeed": (
        {"strategy": "deepspeed_stage_1"},
        "opt = torch.optim.LBFGS(model.parameters())\n" + TRAIN,
        "made before the cell",
    ),
    "clipping of a part under DeepSpeed": (
        {"strategy": "deepspeed_stage_2"},
        CLIPPED.replace("model.parameters()", "model.head.parameters()"),
        "clips the gradients of the whole model",
    ),
    "clipping of some steps under DeepSpeed": (
        {"strategy": "deepspeed_stage_2"},
        TRAIN + CLIPPED,
        "does not before `opt.step()`",
    ),
    "a norm that is an argument": (
        {"strategy": "deepspeed_stage_2"},
        "def step(largest):\n    F.cross_entropy(model(X), Y).backward()\n"
        "    nn.utils.clip_grad_norm_(model.parameters(), largest)\n    opt.step()\n"
        "    opt.zero_grad()\nstep(1.0)",
        "a number as the norm",
    ),
    "two forward passes under DeepSpeed": (
        {"strategy": "deepspeed_stage_2"},
        TRAIN.replace("model(x), y", "model(x) + model(x.flip(1)), y"),
        "several times for one backward()",
    ),
    "forward passes in a loop under DeepSpeed": (
        {"strategy": "deepspeed_stage_2"},
        TRAIN.replace("model(x), y", "sum(model(x * i) for i in range(3)), y"),
        "several times for one backward()",
    ),
    "two backward passes under DeepSpeed": (
        {"strategy": "deepspeed_stage_2"},
        TRAIN.replace("loss.backward()", "loss.backward(retain_graph=True)"),
        "one forward pass twice",
    ),
    "gradients that add up under DeepSpeed": (
        {"strategy": "deepspeed_stage_1"},
        TRAIN.replace("opt.zero_grad()", "pass"),
        "zero_grad() before backward()",
    ),
    "changed weights under DeepSpeed": (
        {"strategy": "deepspeed_stage_2"},
        TRAIN + "    for p in model.parameters():\n        p.data.clamp_(-1, 1)\n",
        "changes parameters",
    ),
    "initialized weights under DeepSpeed": (
        {"strategy": "deepspeed_stage_2"},
        "nn.init.zeros_(model.head.weight)\n" + TRAIN,
        "changes parameters",
    ),
    "changed weights of an argument under DeepSpeed": (
        {"strategy": "deepspeed_stage_2"},
        "def limit(net):\n    for p in net.parameters():\n        p.data = p.data.clamp(-1, 1)\n"
        + TRAIN
        + "limit(model)\n",
        "changes parameters",
    ),
    "a copy under DeepSpeed": (
        {"strategy": "deepspeed_stage_2"},
        "import copy\n" + TRAIN + "average = copy.deepcopy(model)\n",
        "copy `model` in an earlier cell",
    ),
    "the optimizer's state under DeepSpeed": (
        {"strategy": "deepspeed_stage_3"},
        TRAIN + 'torch.save(opt.state_dict(), "opt.pt")\n',
        "each rank has a part",
    ),
    "a closure under DeepSpeed": (
        {"strategy": "deepspeed_stage_3"},
        TRAIN.replace("opt.step()", "opt.step(lambda: loss)"),
        "closure",
    ),
    "an optimizer made in the cell, under DeepSpeed": (
        {"strategy": "deepspeed_stage_3"},
        f"{SGD}\n{TRAIN}",
        "make the optimizer in an earlier cell",
    ),
    **{
        f"a penalty {how} under {strategy}": (
            {"strategy": strategy},
            TRAIN.replace("F.cross_entropy(model(x), y)", f"F.cross_entropy(model(x), y) + {term}"),
            "weight_decay of the optimizer",
        )
        for strategy in ("tp", "fsdp", "deepspeed_stage_3")
        for how, term in {
            "on all weights": "sum(p.abs().sum() for p in model.parameters())",
            "on powers": 'sum((p**2).sum() for n, p in model.named_parameters() if "w" in n)',
            "on a layer": "torch.norm(model.head.weight)",
        }.items()
    },
    "whole batches": ({"exact": "always"}, TRAIN, "--exact never"),
    "accumulate": ({"accumulate": 2}, TRAIN, "--accumulate cannot"),
    "a loader and a shared batch": (
        {},
        "import nbmgpu\n"
        + TRAIN
        + "    for x in nbmgpu.share(X):\n        model(x).mean().backward()\n",
        "two cells",
    ),
    "a share without backward": (
        {},
        "import nbmgpu\nloss = 0\nfor x in nbmgpu.share(X):\n    loss = loss + model(x).mean()\n"
        "loss.backward()\nopt.step()\n",
        "loss.backward() in the loop",
    ),
    "clip": ({"clip": 1.0}, TRAIN, "clip_grad_norm_"),
    "fp16": ({"precision": "fp16"}, TRAIN, "GradScaler"),
    "per-rank": ({"batch": "per-rank"}, TRAIN, "multiply the batch size"),
    "a sum": ({}, TRAIN.replace("(x), y)", '(x), y, reduction="sum")'), 'reduction="mean"'),
    "a layer alone": ({}, TRAIN.replace("model(x)", "model.head(model.body(x))"), "model.head"),
    "a layer of a function's argument": (
        {},
        "def loss_of(net, x, y):\n"
        "    return F.cross_entropy(net.head(torch.tanh(net.body(x))), y)\n"
        + TRAIN.replace("F.cross_entropy(model(x), y)", "loss_of(model, x, y)"),
        "calls a part of a model",
    ),
    "a new head": (
        {},
        "model.head = nn.Linear(model.head.in_features, 4)\n" + TRAIN,
        "in an earlier cell",
    ),
    "a model frozen in its cell": (
        {},
        "net = Net()\nfor p in net.parameters():\n    p.requires_grad = False\n" + TRAIN,
        "in an earlier cell",
    ),
    "a branch before the backward pass": (
        {},
        TRAIN.replace(
            "    loss.backward()",
            "    if loss.item() < 0.1:\n            break\n        loss.backward()",
        ),
        "put it after backward()",
    ),
    "two loaders at once": (
        {},
        "for (x, y), (u, v) in zip(loader, DataLoader(dataset, 4)):\n"
        "    (F.cross_entropy(model(x), y) + model(u).mean()).backward()\n    opt.step()",
        "several loaders",
    ),
    "a name of the script": ({}, "dist = 1\n" + TRAIN, "my_dist"),
    "a builtin": ({}, TRAIN + "sum = sum(losses)\n", "my_sum"),
    "one GPU": ({}, 'device = torch.device("cuda:0")\n' + TRAIN, "chooses GPUs by itself"),
    "no training": ({}, "print(len(loader))", "backward"),
    "globals": ({}, f"n = globals()\n{TRAIN}", "globals"),
    "await": ({}, f"import asyncio\nawait asyncio.sleep(0)\n{TRAIN}", "asyncio.run"),
    "magic inside": ({}, TRAIN + "    %time pass\n", "outside of loops"),
    "bare tensors": ({}, "w = 1", "belong to no model"),
}


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "bare tensors"])
def test_it_is_refused(notebook: Notebook, name: str, tmp_path: Path) -> None:
    options, cell, message = REFUSED[name]
    with pytest.raises(NbmgpuError) as refusal:
        notebook.export(cell, tmp_path / "train.py", **options)
    assert message in str(refusal.value)
    assert "Try: " in str(refusal.value)
    assert not (tmp_path / "train.py").exists()


WAYS = {
    "accelerate": ("accelerate", "batch_size of the DataLoaders"),
    "pytorch_lightning": ("lightning", 'strategy="ddp" and devices=N'),
    "transformers": ("transformers", "per_device_train_batch_size"),
}
TRAINER_CELLS = {
    "accelerate": "from accelerate import Accelerator\nAccelerator(cpu=True)",
    "pytorch_lightning": "import lightning\nlightning.Trainer(logger=False, max_epochs=1)",
    "transformers": "from transformers import Trainer\nTrainer(model)",
}


@pytest.mark.parametrize("name", WAYS)
def test_each_trainer_is_refused_in_its_own_words(
    notebook: Notebook, name: str, tmp_path: Path
) -> None:
    package, words = WAYS[name]
    pytest.importorskip(package)
    with pytest.raises(NbmgpuError, match=words):
        notebook.export(f"{TRAINER_CELLS[name]}\n{TRAIN}", tmp_path / "train.py")


def test_a_missing_folder_is_named(notebook: Notebook, tmp_path: Path) -> None:
    folder = tmp_path / "none"
    with pytest.raises(OptionError, match=f"no folder {folder}"):
        notebook.export(TRAIN, folder / "train.py")
    with pytest.raises(OptionError, match=f"no folder {folder}"):
        nbmgpu.export("", folder / "report.html", report=True)
    assert not folder.exists()


def test_files_of_the_user_are_not_replaced(notebook: Notebook, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    data = tmp_path / "train_data"
    data.mkdir()
    for name in ("x.pt", "loader.pt", "random_state.pt"):
        (data / name).write_text("mine")
    with pytest.raises(OptionError, match=r"train_data/.* exists, and would be lost"):
        notebook.export(TRAIN, path)
    assert not path.exists()
    for file in data.iterdir():
        assert file.read_text() == "mine"
        file.unlink()
    notebook.export(TRAIN, path)
    notebook.export(TRAIN, path)  # as nobody has edited it
    for text in (path.read_text().replace("loss", "my_loss", 1), "mine", ""):
        path.write_text(text)
        with pytest.raises(OptionError, match="is not what nbmgpu has exported"):
            notebook.export(TRAIN, path)
        assert path.read_text() == text


def test_a_report_replaces_a_report_only(notebook: Notebook, tmp_path: Path) -> None:
    nbmgpu.run("1 + 1", {}, gpus=2, cpu=True)
    path = tmp_path / "report.html"
    nbmgpu.export("", path, report=True)
    nbmgpu.export("", path, report=True)
    path.write_text("<p>mine</p>")
    with pytest.raises(OptionError, match=r"another name, such as report_2\.html"):
        nbmgpu.export("", path, report=True)


def test_a_run_that_started_again_says_why(notebook: Notebook, tmp_path: Path) -> None:
    request = notebook.request(TRAIN, exact="always")
    reason = "On shards of a batch, the cell counts by the size of each rank's shard"
    request = dataclasses.replace(request, restarted=reason)
    with pytest.raises(OptionError) as refusal:
        write_script(request, tmp_path / "train.py")
    assert f"The run started again with whole batches, which no plain script has. {reason}." in str(
        refusal.value
    )
    assert "--exact always" not in str(refusal.value)


def test_bare_tensors_are_refused(tmp_path: Path) -> None:
    notebook = Notebook()
    notebook.run(IMPORTS, DEFINITIONS, LOADER)
    notebook.run("w = torch.ones(8, 4, requires_grad=True)\nopt = torch.optim.SGD([w], lr=0.1)")
    with pytest.raises(NbmgpuError, match="belong to no model"):
        notebook.export(TRAIN.replace("model(x)", "x @ w"), tmp_path / "train.py")


HOLDER = """
class Holder:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def fit(self):
        for x, y in loader:
            self.opt.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            self.opt.step()
"""
UNNAMED = {
    "an object": (HOLDER + "holder = Holder(Net())", "holder.fit()", "No model has a name"),
    "an object beside it": (
        f"{HOLDER}{MODEL}\n{SGD}\nholder = Holder(model)",
        f"holder.fit()\n{TRAIN}",
        "`holder` holds a model, and a script wraps",
    ),
    "a list": (
        f"{MODEL}\n{SGD}\nmodels = [Net(), Net()]",
        TRAIN.replace("model(x)", "(model(x) + models[0](x))"),
        "`models` holds a model that has no name",
    ),
    "a function": (
        "def make():\n    return Net()",
        f"def train():\n    model = make()\n    {SGD}"
        "\n    F.cross_entropy(model(X), Y).backward()\n    opt.step()\ntrain()",
        "No model has a name",
    ),
}


@pytest.mark.parametrize("name", UNNAMED)
def test_models_without_names_are_refused(name: str, tmp_path: Path) -> None:
    setup, cell, message = UNNAMED[name]
    notebook = Notebook()
    notebook.run(IMPORTS, DEFINITIONS, LOADER, setup)
    with pytest.raises(NbmgpuError, match=message):
        notebook.export(cell, tmp_path / "train.py")


def test_trainers_are_refused(tmp_path: Path) -> None:
    notebook = Notebook()
    notebook.run(IMPORTS, DEFINITIONS, LOADER, f"{MODEL}\n{SGD}")
    notebook.run("from accelerate import Accelerator\naccelerator = Accelerator(cpu=True)")
    cell = TRAIN.replace("loss.backward()", "accelerator.backward(loss)")
    with pytest.raises(NbmgpuError, match="distributes the training by itself"):
        notebook.export(cell, tmp_path / "train.py")
    exported = notebook.export(cell, tmp_path / "train.py", with_nbmgpu=True)
    assert "accelerator = Accelerator(cpu=True)" in exported.path.read_text()


STREAM = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(dataset)

loader = DataLoader(Stream(), batch_size=8)
"""


def test_a_stream_is_refused(tmp_path: Path) -> None:
    notebook = Notebook()
    notebook.run(IMPORTS, DEFINITIONS, LOADER, f"{MODEL}\n{SGD}", STREAM)
    with pytest.raises(NbmgpuError, match="`loader` draws no batches of indices"):
        notebook.export(TRAIN, tmp_path / "train.py")


NOTES = {
    "dropout": (f"{MODEL.replace('Net()', 'nn.Sequential(nn.Linear(8, 4), nn.Dropout())')}\n{SGD}",
        TRAIN, "Dropout"),
    "counts": ("", TRAIN + "        n = (y == 1).sum().item()\n", "(y == 1).sum().item()"),
    "ignored": ("", TRAIN.replace("(x), y)", "(x), y, ignore_index=0)"), "`ignore_index`"),
    "ignored labels": ("dataset.tensors[1][::3] = -100", TRAIN, "`ignore_index`"),
    "files": ("", TRAIN + 'open("a.txt", "w").close()\n', "a.txt"),
    "sizes": ("", f"n = 0{TRAIN}        n += loss.item() * x.size(0)\n", "x.size(0)"),
    "appended files": ("", TRAIN + "open('a.txt','a').close()\n", "a.txt"),
    "mlflow": ("import mlflow", TRAIN + '    mlflow.log_metric("loss", loss.item())\n',
        "if dist.get_rank() == 0:"),
    "magic": ("", "%time print(1)\n" + TRAIN, "`%time print(1)`"),
    "states of shards": ("", TRAIN + "state = opt.state_dict()\n", "this rank's shards"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTES)
def test_what_may_differ_is_a_note(name: str, tmp_path: Path) -> None:
    setup, cell, message = NOTES[name]
    notebook = Notebook()
    notebook.run(IMPORTS, DEFINITIONS, LOADER, f"{MODEL}\n{SGD}", setup or "pass")
    strategy = "fsdp" if name == "states of shards" else "ddp"
    exported = notebook.export(cell, tmp_path / "train.py", strategy=strategy)
    assert len(exported.notes) == 1
    assert message in exported.notes[0]
    assert exported.notes[0] in " ".join(exported.path.read_text().split())
    assert f"Note: {exported.notes[0]}" in str(exported)


def test_only_loaders_that_train_are_shared(notebook: Notebook, tmp_path: Path) -> None:
    other = Notebook([*notebook.cells], dict(notebook.namespace))
    other.run("val_loader = DataLoader(dataset, 9)\ndef step(x, y):\n    loss = model(x).sum()")
    evaluation = "\nfor x, y in val_loader:\n    right = (model(x).argmax(1) == y).sum()\n"
    text = other.export(TRAIN + evaluation, tmp_path / "train.py").path.read_text()
    assert "loader = ShardedLoader(loader)" in text
    assert "ShardedLoader(val_loader)" not in text
    other.run(
        "def step(x, y):\n    loss = F.cross_entropy(model(x), y)\n"
        "    loss.backward()\n    opt.step()"
    )
    text = other.export("for x, y in loader:\n    step(x, y)", tmp_path / "a.py").path.read_text()
    assert "loader = ShardedLoader(loader)" in text


def test_options_become_arguments(notebook: Notebook, tmp_path: Path) -> None:
    def exported(**options: object) -> str:
        return notebook.export(TRAIN, tmp_path / "train.py", **options).path.read_text()

    text = exported(find_unused=True, static_graph=True, bucket_views=True, compress="bf16", seed=7)
    wrapped = "DistributedDataParallel(model, find_unused_parameters=True, static_graph=True, "
    assert wrapped + "gradient_as_bucket_view=True)" in text
    assert "model.register_comm_hook(None, default_hooks.bf16_compress_hook)" in text
    assert "torch.manual_seed(7)" in text
    assert "random_state" not in text
    assert 'torch.autocast("cpu", torch.bfloat16)(model.forward)' in exported(precision="bf16")
    assert "reshard_after_forward=False" in exported(strategy="zero2")
    assert "MixedPrecisionPolicy(" in exported(strategy="fsdp", precision="bf16")
    assert "model.compile()" in exported(compile=True)


@pytest.mark.parametrize(
    ("line", "run", "path", "options"),
    [
        ("train.py", "", "train.py", {}),
        ("2026 'my folder/train.py'", "2026", "my folder/train.py", {}),
        ("2026 train.py -s fsdp --gpus 4", "2026", "train.py", {"strategy": "fsdp", "gpus": 4}),
        ("--strategy fsdp train.py", "", "train.py", {"strategy": "fsdp"}),
        ("--report 2026 a.html", "2026", "a.html", {}),
        ("--report 2026", "2026", "report-2026.html", {}),
        ("--report", "", "report.html", {}),
    ],
)
def test_the_words_of_the_command(line: str, run: str, path: str, options: object) -> None:
    command = parse(line)
    assert (command.run, command.path, command.options) == (run, path, options)
    assert command.report == path.endswith(".html")


@pytest.mark.parametrize(
    "line",
    [
        *("", "2026", "a b train.py", "train.py --with-nbmgp", "x.txt", "'train.py"),
        *("--report a.pdf", "a.py b.py"),
    ],
)
def test_wrong_words_say_what_to_type(line: str) -> None:
    with pytest.raises(OptionError, match="Try: "):
        parse(line)


def test_an_embedding_that_changes_itself_has_no_engine(tmp_path: Path) -> None:
    notebook = Notebook()
    notebook.run(IMPORTS, DEFINITIONS, LOADER)
    notebook.run(f"model = nn.Sequential(nn.Embedding(9, 4, max_norm=1.0), nn.Flatten())\n{SGD}")
    with pytest.raises(NbmgpuError, match="max_norm"):
        notebook.export(TRAIN, tmp_path / "train.py", strategy="deepspeed_stage_2")


def test_all_ranks_shuffle_alike_after_a_run(notebook: Notebook, tmp_path: Path) -> None:
    cell = "import random\norder = [*range(9)]\nrandom.shuffle(order)\n" + TRAIN
    request = notebook.request(cell, strategy="tp", at_start=False)
    text = write_script(request, tmp_path / "train.py").path.read_text()
    assert "random.seed(0)  # alike on all ranks" in text
