"""``%%mgpu compare`` in a real kernel: the table, interrupts, and no side effects."""

from __future__ import annotations

import time

from kernels import Notebook

TRAIN = """
for epoch in range(100_000):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""
SLOW_TRAIN = TRAIN + "        time.sleep(0.01 * len(x))  # two ranks are faster\n"
STATE = "(model.weight.tolist(), model.weight.grad, list(optimizer.state), 'loss' in globals())"


def tables(cell):
    """Return the HTML of each update of the cell's output."""
    shown = cell.of("display_data") + cell.of("update_display_data")
    return [output.content["data"]["text/html"] for output in shown]


def test_the_table_is_updated_and_the_notebook_is_unchanged(notebook: Notebook) -> None:
    notebook.run("loss = None; del loss; drawn = torch.get_rng_state()")
    before = notebook.value(STATE)
    cell = notebook.run(
        f"%%mgpu compare --strategies ddp,fsdp --gpus 2 --steps 8\n{SLOW_TRAIN}", 120
    )
    notebook.wait_for_ranks_to_exit(10)
    assert notebook.value(STATE) == before
    assert notebook.value("torch.equal(drawn, torch.get_rng_state())")
    assert len(cell.of("display_data")) == 1, "a single output, updated in place"
    first, *between, last = tables(cell)
    assert "preparing" in first
    assert any("step " in html and " of 8, " in html for html in between), "progress is shown"
    assert all(name in last for name in ("one device", "ddp", "fsdp", "Put this line on the cell"))
    assert "<progress" not in last
    rows = notebook.value("[(r.name, r.state, r.loss.agrees) for r in nbmgpu.last_comparison.rows]")
    assert rows == [(name, "finished", True) for name in ("one device", "ddp", "fsdp")]
    assert cell.of("execute_result") == []


def test_an_interrupt_ends_the_comparison_and_keeps_finished_rows(notebook: Notebook) -> None:
    before = notebook.value(STATE)
    cell = notebook.send(f"%%mgpu compare --strategies ddp,fsdp --gpus 2 --steps 60\n{SLOW_TRAIN}")
    deadline = time.monotonic() + 60
    while not any("ddp</td><td></td>" in html and "step " in html for html in tables(cell)):
        assert time.monotonic() < deadline, cell.outputs
        time.sleep(0.05)
    at = notebook.interrupt()
    assert "nbmgpu.last_comparison has its rows" in cell.fails("KeyboardInterrupt", 30)
    assert cell.replied - at < 3
    notebook.wait_for_ranks_to_exit(10)
    assert notebook.value(STATE) == before
    rows = notebook.value("[(r.name, r.state) for r in nbmgpu.last_comparison.rows]")
    assert rows == [("one device", "finished"), ("ddp", "stopped")]
    assert "Stopped: 1 run not made." in tables(cell)[-1]
    assert notebook.value("nbmgpu.last_comparison.rows[1].timing.steps") > 0


def test_errors_name_the_corrected_line(notebook: Notebook) -> None:
    shown = notebook.send("%%mgpu compare --strategies dpp\nx = 1").fails("OptionError")
    assert "Try: %%mgpu compare --strategies ddp" in shown
    shown = notebook.send("%%mgpu compar --steps 3\nx = 1").fails("OptionError")
    assert "Try: %%mgpu compare --steps 3" in shown
    assert "--compile" in notebook.send("%%mgpu compile\nx = 1").fails("OptionError")
    cell = notebook.send("%%mgpu compare\nprint(nowhere)")
    assert "'nowhere'" in cell.fails("UnknownNameError")
    shown = notebook.send("%mgpu compare").fails("OptionError")
    assert "%%mgpu compare" in shown
