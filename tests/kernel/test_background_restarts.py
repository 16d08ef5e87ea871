"""A run in the background of which a rank is killed starts again, whoever waits for it."""

from __future__ import annotations

import pytest
from conftest import TRAINING
from kernels import Notebook, wait_for

CELL = """
losses = []
for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print("step", len(losses), flush=True)
        if len(losses) == 8:
            wait_to_be_killed()
"""
BEFORE = """
import os, signal
from pathlib import Path

def wait_to_be_killed():
    if os.environ.get("RANK") == "1" and not MARK.exists():
        GO.read_text()  # a named pipe: until the test writes into it
        MARK.touch()
        os.kill(os.getpid(), signal.SIGKILL)

GO, MARK = Path("go"), Path("mark")
"""
STATE = "model.weight.flatten().tolist(), losses"
LINE = "--gpus 2 --cpu --exact never --checkpoint-every 2steps --max-restarts 1"


@pytest.mark.parametrize("how", ["--background", "--detach", "attached"])
def test_it_starts_again(notebook: Notebook, how: str) -> None:
    notebook.run(f"{BEFORE}for each in (GO, MARK): each.unlink(missing_ok=True)\nos.mkfifo(GO)")
    option = "--background" if how == "attached" else how
    notebook.run("losses = None")
    cell = notebook.send(f"%%mgpu {LINE} {option}\n{CELL}").ok()
    failed = notebook.value("nbmgpu.last_run.id")
    attached = notebook.send("%mgpu attach" if how == "attached" else "print('step 8')")
    for each in (cell, attached):
        each.until("step 8")
    (notebook.folder / "work" / "go").write_text("")
    attached.ok()
    wait_for(lambda: notebook.value("losses") is not None, 60, cell)
    assert notebook.value("nbmgpu.last_run.id") != failed
    assert "Restarts left: 0" in notebook.value("nbmgpu.last_run.view.notices['restarted'].text")
    assert cell.of("error") == []
    weights, losses = notebook.value(STATE)
    notebook.run(TRAINING)
    notebook.run(CELL)  # the mark is there
    assert notebook.value(STATE) == (pytest.approx(weights), pytest.approx(losses))
