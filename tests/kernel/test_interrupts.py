"""Interrupt: the ranks go, what was done comes back, the notebook goes on."""

from __future__ import annotations

import time

import pytest
from kernels import ExecutedCell, Notebook, wait_for

GONE = 3.0
"""Seconds until every rank is gone: 2, and one more for a busy machine."""

TRAIN = """
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
steps = 3
print("ready")
rank = dist.get_rank()
"""


def interrupted(notebook: Notebook, rest: str, head: str = "", options: str = "") -> ExecutedCell:
    """Interrupt a cell that has trained and then does ``rest``; the ranks must go in time."""
    notebook.run("before, steps = model.weight.detach().clone(), 0")
    cell = notebook.send(f"{head}%%mgpu --gpus 2 {options}\n{TRAIN}{rest}")
    cell.until("ready")
    time.sleep(0.2)
    at = notebook.interrupt()
    notebook.gone(10)
    cell.fails("KeyboardInterrupt")
    assert notebook.gone(1) - at < GONE
    assert cell.replied - at < GONE
    return cell


def assert_all_is_back(notebook: Notebook) -> None:
    assert notebook.value("steps, torch.equal(before, model.weight)") == (3, False)
    assert notebook.run("%%mgpu --gpus 2\nsteps + 1").seen == ["4"]


@pytest.mark.parametrize("head", ["", "%%time\n"])
@pytest.mark.parametrize(
    "rest",
    [
        pytest.param("while True: pass", id="python"),
        pytest.param("time.sleep(100)", id="sleep"),
        pytest.param("if rank == 1: time.sleep(100)\ndist.barrier()", id="rank 0 in a collective"),
        pytest.param("if rank == 0: time.sleep(100)\ndist.barrier()", id="rank 1 in a collective"),
        pytest.param(
            "if rank == 0: dist.all_reduce(torch.ones(1))\nelse: dist.recv(torch.ones(1), 0)",
            id="both stuck",
        ),
    ],
)
def test_ranks_go_and_the_training_comes_back(notebook: Notebook, rest: str, head: str) -> None:
    cell = interrupted(notebook, rest, head)
    assert "was stopped; what was trained so far is back" in cell.reply["evalue"]
    assert cell.text().startswith("ready\n")
    assert "Traceback" not in cell.text() + cell.text("stderr")
    assert_all_is_back(notebook)


def test_training_in_full_swing(notebook: Notebook) -> None:
    interrupted(notebook, "while True:\n    for x, y in loader:\n        model(x)")
    assert_all_is_back(notebook)


def test_a_long_call_of_compiled_code_is_cut_off(notebook: Notebook) -> None:
    notebook.run("big = torch.randn(2500, 2500)")
    cell = interrupted(notebook, "torch.linalg.svd(big)")
    assert "rank 0 was killed before it could send its results" in cell.reply["evalue"]
    assert notebook.value("steps") == 0
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


def test_an_interrupt_that_the_cell_swallows_comes_again(notebook: Notebook) -> None:
    sleep = "time.sleep(100)"
    interrupted(notebook, f"try:\n    {sleep}\nexcept KeyboardInterrupt:\n    pass\n{sleep}")
    assert_all_is_back(notebook)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_cell_may_handle_its_interrupt(notebook: Notebook, strategy: str) -> None:
    """It saves what it has, bit by bit, for longer than other ranks are waited for."""
    saving = """
try:
    time.sleep(100)
except KeyboardInterrupt:
    with open("saved.txt", "w") as file:
        for number in range(15):
            print(number, file=file, flush=True)
            time.sleep(0.2)
    steps = number
time.sleep(100)
"""
    notebook.run("steps = 0")
    cell = notebook.send(f"%%mgpu --gpus 2 --strategy {strategy}\n{TRAIN}{saving}")
    cell.until("ready")
    time.sleep(0.2)
    notebook.interrupt()
    cell.fails("KeyboardInterrupt")
    assert notebook.value("len(open('saved.txt').readlines()), steps") == (15, 14)
    notebook.gone(5)


def test_other_ranks_are_waited_for_no_longer_than_one_handles_its_interrupt(
    notebook: Notebook,
) -> None:
    interrupted(
        notebook,
        "try:\n    time.sleep(0 if rank == 0 else 100)\nfinally:\n"
        "    time.sleep(0.4)\ndist.barrier()",
    )


def test_a_cell_that_handles_its_interrupt_for_ever_is_ended(notebook: Notebook) -> None:
    sleep = "time.sleep(100)"
    rest = f"try:\n    {sleep}\nexcept KeyboardInterrupt:\n    {sleep}"
    cell = notebook.send(f"%%mgpu --gpus 2\n{TRAIN}{rest}")
    cell.until("ready")
    at = notebook.interrupt()
    notebook.gone(20)
    cell.fails("KeyboardInterrupt")
    assert 10 < cell.replied - at < 13
    assert_all_is_back(notebook)


def test_a_shell_line_is_ended_and_the_cell_too(notebook: Notebook) -> None:
    interrupted(notebook, "!sleep 1000\ntime.sleep(100)")
    assert_all_is_back(notebook)


def test_a_second_interrupt_does_not_wait_for_results(notebook: Notebook) -> None:
    notebook.run("""class Slow:
    def __reduce__(self):
        time.sleep(30)
        return Slow, ()
""")
    cell = notebook.send("%%mgpu --gpus 2\nslow = Slow()\nprint('ready')\ntime.sleep(100)")
    cell.until("ready")
    notebook.interrupt()
    time.sleep(0.5)
    at = notebook.interrupt()
    cell.fails("KeyboardInterrupt")
    assert cell.replied - at < GONE


def test_a_timeout_is_an_interrupt_by_the_clock(notebook: Notebook) -> None:
    cell = notebook.send(f"%%mgpu --gpus 2 --timeout 3\n{TRAIN}time.sleep(100)")
    shown = cell.fails("RunTimeoutError")
    assert "--timeout 3" in shown
    assert "Ranks 0, 1 were at line 9 of the cell: time.sleep(100)" in shown
    assert cell.replied - cell.started < 3 + GONE
    assert notebook.value("steps") == 3


def test_ranks_that_wait_for_data_go_when_its_sending_is_interrupted(notebook: Notebook) -> None:
    notebook.run("data = torch.ones(2**29)")
    cell = notebook.send("%%mgpu --gpus 2 --strategy none\nfloat(data[0] + data[-1])")
    wait_for(notebook.workers, 20, notebook.processes)
    at = notebook.interrupt()
    cell.wait(60)
    # ipykernel has a word of its own for an interrupt between two of its steps.
    assert cell.reply["ename"] in ("KeyboardInterrupt", "CancelledError")
    assert notebook.gone(30) - at < 5 * GONE  # two gibibytes have to be given back
    notebook.run("data[0] = 5")
    again = "%%mgpu --gpus 2 --strategy none\nfloat(data[0] + data[-1])"
    assert notebook.run(again).seen == ["6.0"]
    notebook.run("del data")
