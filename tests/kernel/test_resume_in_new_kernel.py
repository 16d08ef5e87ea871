"""A cell that was stopped in one kernel goes on in another one."""

from __future__ import annotations

import pytest
from conftest import TRAINING

CELL = """
losses = []
for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print("step", len(losses))
        time.sleep(PAUSE)
"""
STATE = "model.weight.flatten().tolist(), losses"


@pytest.mark.slow
def test_a_stopped_cell_goes_on_in_a_new_kernel(new_notebook) -> None:
    first = new_notebook("first")
    first.run("PAUSE = 0.3")
    cell = first.send(f"%%mgpu --gpus 2 --checkpoint-every epoch\n{CELL}").until("step 5")
    first.interrupt()
    cell.fails("KeyboardInterrupt")
    second = new_notebook("second", NBMGPU_RUNS=str(first.runs))
    second.run("PAUSE = 0")
    cell = second.send(f"%%mgpu --gpus 2 --resume\n{CELL}").ok()
    output = "".join(cell.seen)
    assert "step 5\n" not in output
    assert "step 12\n" in output
    weights, losses = second.value(STATE)
    second.run(TRAINING)
    second.run(CELL)
    assert second.value(STATE) == (pytest.approx(weights), pytest.approx(losses))
