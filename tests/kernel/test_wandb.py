"""wandb in cells: each step is logged exactly once, and the notebook's run continues."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kernels import Notebook
from wandb.proto import wandb_internal_pb2

BLOCK = 32768
SETUP = "import wandb; losses = []"
OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    {log}({{"loss": loss.item(), "lr": wandb.config.lr}})
"""


def records(path: Path) -> Iterator[Any]:
    """Yield the records of a .wandb file: seven bytes, then a log file of LevelDB."""
    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a full record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def logged(notebook: Notebook) -> list[dict[str, list[Any]]]:
    """Return the values that each run of a notebook logged, by name; runs sorted by start."""
    found = []
    for path in sorted((notebook.folder / "work" / "wandb").glob("offline-run-*/*.wandb")):
        curves: dict[str, list[Any]] = {}
        for record in records(path):
            for item in record.history.item:
                name = item.key or "/".join(item.nested_key)
                if not name.startswith("_"):
                    curves.setdefault(name, []).append(json.loads(item.value_json))
        found.append(curves)
    return found


@pytest.mark.parametrize(
    "init", ["wandb.init", pytest.param("init", marks=pytest.mark.matrix("nbmgpu/environment"))]
)
def test_a_run_started_in_the_cell_is_finished_and_complete(
    new_notebook: Callable[..., Notebook], init: str
) -> None:
    notebook = new_notebook(**OFFLINE)
    notebook.run(f"{SETUP}; from wandb import init", timeout=120)
    init_line = f'run = {init}(project="p", name="first", config={{"lr": 0.1}})'
    notebook.run(f"%%mgpu --gpus 2\n{init_line}{LOOP.format(log='wandb.log')}", timeout=120)
    losses = notebook.value("losses")
    assert len(losses) == 3
    assert logged(notebook) == [{"loss": losses, "lr": [0.1] * 3}]
    assert notebook.value("(run.name, dict(run.config))") == ("first", {"lr": 0.1})
    assert "finished" in notebook.send("run.log({'loss': 1})").wait().reply["evalue"]


@pytest.mark.matrix("nbmgpu/environment", "nbmgpu/rank")
def test_objects_that_hold_a_finished_run_are_sent(
    new_notebook: Callable[..., Notebook],
) -> None:
    notebook = new_notebook(**OFFLINE)
    notebook.run(SETUP, timeout=120)
    notebook.run("""
run = wandb.init(project="p", config={"lr": 0.4})
table = wandb.Table(columns=["a"], data=[[1]])
run.log({"table": table})
run.finish()
class Trainer:
    pass
""")
    cell = notebook.run(
        """%%mgpu --gpus 2
print(run.config["lr"], len(table.data))
trainer = Trainer()
trainer.run, trainer.model = wandb.init(project="p"), model
folder = trainer.run.dir
folders = [None, None]
dist.all_gather_object(folders, (folder, trainer.run.id))
""",
        timeout=120,
    )
    assert cell.seen == ["0.4 1\n"]
    assert notebook.value("trainer.model is model and trainer.run.id == folders[0][1]")
    first, second = notebook.value("folders")
    assert first == second


@pytest.mark.matrix("nbmgpu/environment", "nbmgpu/rank")
def test_comparisons_log_nothing(new_notebook: Callable[..., Notebook]) -> None:
    notebook = new_notebook(**OFFLINE)
    notebook.run(SETUP, timeout=120)
    notebook.run('run = wandb.init(project="p", config={"lr": 0.2})')
    loop = LOOP.format(log="wandb.log")
    notebook.run(f"%%mgpu compare --strategies ddp --gpus 2 --steps 2{loop}", timeout=200)
    notebook.run('wandb.log({"after": 1}); wandb.finish()')
    assert logged(notebook) == [{"after": [1]}]


@pytest.mark.matrix("nbmgpu/environment", "nbmgpu/rank")
def test_the_notebooks_run_continues_in_and_after_cells(
    new_notebook: Callable[..., Notebook],
) -> None:
    notebook = new_notebook(**OFFLINE)
    notebook.run(SETUP, timeout=120)
    notebook.run('run = wandb.init(project="p", config={"lr": 0.2}); config = wandb.config')
    for log in ("wandb.log", "run.log"):
        notebook.run(f"%%mgpu --gpus 2{LOOP.format(log=log)}", timeout=120)
    cell = notebook.run("%%mgpu --gpus 2\nprint(config.lr, run.config['lr'], wandb.run is run)")
    assert cell.seen == ["0.2 0.2 True\n"]
    notebook.run("wandb.log({'after': 1}, step=9)")
    notebook.run("%%mgpu --gpus 2\nwandb.config.update({'lr': 0.3}, allow_val_change=True)")
    assert notebook.value("(wandb.config.lr, run.config['lr'])") == (0.3, 0.3)
    notebook.run(
        "%%mgpu --gpus 2\nwandb.log({'last': 2}, step=12)\nassert wandb.config.lr == 0.3\n"
        "wandb.finish()\nassert not wandb.run"
    )
    assert notebook.value("wandb.run is None and run._is_finished")
    losses = notebook.value("losses")
    assert len(losses) == 6
    assert logged(notebook) == [{"loss": losses, "lr": [0.2] * 6, "after": [1], "last": [2]}]


@pytest.mark.matrix("nbmgpu/environment", "nbmgpu/rank")
def test_watch_logs_gradients_in_ranks(new_notebook: Callable[..., Notebook]) -> None:
    notebook = new_notebook(**OFFLINE)
    notebook.run(SETUP, timeout=120)
    notebook.run('run = wandb.init(project="p", config={"lr": 0.2})')
    notebook.run("wandb.watch(model, log_freq=1)")
    notebook.run(f"%%mgpu --gpus 2{LOOP.format(log='wandb.log')}", timeout=120)
    notebook.run("wandb.finish()")
    (curves,) = logged(notebook)
    assert curves["loss"] == notebook.value("losses")
    assert len([name for name in curves if name.startswith("gradients/weight")]) > 0


def test_a_disabled_run_logs_nothing(new_notebook: Callable[..., Notebook]) -> None:
    notebook = new_notebook()
    notebook.run(SETUP, timeout=120)
    notebook.run('run = wandb.init(mode="disabled", config={"lr": 0.3})')
    cell = notebook.run(
        "%%mgpu --gpus 2\nwandb.log({'a': 1})\nrun.log({'a': 1})\nprint(run.config.lr)", timeout=120
    )
    assert cell.seen == ["0.3\n"]
    assert logged(notebook) == []
