"""An interrupt ends the ranks and writes back what was trained; the kernel stays usable."""

from __future__ import annotations

import time

import pytest
from kernels import ExecutedCell, Notebook, wait_for

pytestmark = pytest.mark.alone

MAX_DELAY = 3.0
"""Seconds until all ranks have exited: 2, and one more for a busy machine."""

BEFORE = "before, steps = model.weight.detach().clone(), 0"

TRAIN = """
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
steps = 3
print("ready")
rank = dist.get_rank()
"""


def interrupted(notebook: Notebook, rest: str, head: str = "", options: str = "") -> ExecutedCell:
    """Interrupt a cell that trains and then runs ``rest``; its ranks must exit in time."""
    notebook.run(BEFORE)
    cell = notebook.send(f"{head}%%mgpu --gpus 2 {options}\n{TRAIN}{rest}")
    cell.until("ready")
    time.sleep(0.2)
    at = notebook.interrupt()
    notebook.wait_for_ranks_to_exit(10)
    cell.fails("KeyboardInterrupt")
    assert notebook.wait_for_ranks_to_exit(1) - at < MAX_DELAY
    assert cell.replied - at < MAX_DELAY
    return cell


def assert_training_is_written_back(notebook: Notebook) -> None:
    assert notebook.value("steps, torch.equal(before, model.weight)") == (3, False)
    assert notebook.run("%%mgpu --gpus 2\nsteps + 1").seen == ["4"]


@pytest.mark.parametrize(
    ("rest", "head"),
    [
        pytest.param("while True: pass", "", id="python"),
        pytest.param("time.sleep(100)", "%%time\n", id="sleep under %%time"),
        pytest.param(
            "if rank == 1: time.sleep(100)\ndist.barrier()", "", id="rank 0 in a collective"
        ),
        pytest.param(
            "if rank == 0: time.sleep(100)\ndist.barrier()", "", id="rank 1 in a collective"
        ),
        pytest.param(
            "if rank == 0: dist.all_reduce(torch.ones(1))\nelse: dist.recv(torch.ones(1), 0)",
            "",
            id="deadlock",
        ),
    ],
)
def test_ranks_exit_and_training_is_written_back(notebook: Notebook, rest: str, head: str) -> None:
    cell = interrupted(notebook, rest, head)
    assert "was stopped; what was trained so far is back" in cell.reply["evalue"]
    assert cell.text().startswith("ready\n")
    assert "Traceback" not in cell.text() + cell.text("stderr")
    assert_training_is_written_back(notebook)


def test_an_interrupt_during_training(notebook: Notebook) -> None:
    interrupted(notebook, "while True:\n    for x, y in loader:\n        model(x)")
    assert_training_is_written_back(notebook)


def test_a_long_call_of_compiled_code_is_killed(notebook: Notebook) -> None:
    notebook.run("big = torch.randn(2500, 2500)")
    cell = interrupted(notebook, "torch.linalg.svd(big)")
    assert "rank 0 ended before it could send its results" in cell.reply["evalue"]
    assert notebook.value("steps") == 0
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


def test_a_swallowed_interrupt_is_raised_again(notebook: Notebook) -> None:
    sleep = "time.sleep(100)"
    interrupted(notebook, f"try:\n    {sleep}\nexcept KeyboardInterrupt:\n    pass\n{sleep}")
    assert_training_is_written_back(notebook)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_cell_can_handle_keyboardinterrupt(notebook: Notebook, strategy: str) -> None:
    """Saves for longer than other ranks are waited for."""
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
    notebook.wait_for_ranks_to_exit(5)


def test_a_cell_that_handles_its_interrupt_and_ends_has_finished(notebook: Notebook) -> None:
    """So "Run All" goes on, as after the plain cell."""
    handling = "except KeyboardInterrupt:\n    print('enough')\nsteps = 7"
    cell = notebook.send(f"%%mgpu --gpus 2\n{TRAIN}try:\n    time.sleep(100)\n{handling}")
    cell.until("ready")
    time.sleep(0.2)
    notebook.interrupt()
    assert "enough" in cell.ok().text()
    assert notebook.value("steps, nbmgpu.last_run.state") == (7, "finished")


def test_ranks_that_do_not_respond_are_killed_after_the_others_have_finished(
    notebook: Notebook,
) -> None:
    interrupted(
        notebook,
        "try:\n    time.sleep(0 if rank == 0 else 100)\nfinally:\n"
        "    time.sleep(0.4)\ndist.barrier()",
    )


def test_an_endless_interrupt_handler_is_ended(notebook: Notebook) -> None:
    sleep = "time.sleep(100)"
    rest = f"try:\n    {sleep}\nexcept KeyboardInterrupt:\n    {sleep}"
    notebook.run(BEFORE)
    cell = notebook.send(f"%%mgpu --gpus 2\n{TRAIN}{rest}")
    cell.until("ready")
    at = notebook.interrupt()
    notebook.wait_for_ranks_to_exit(20)
    cell.fails("KeyboardInterrupt")
    assert 10 < cell.replied - at < 10 + MAX_DELAY
    assert_training_is_written_back(notebook)


def test_an_interrupt_ends_a_shell_command_and_the_cell(notebook: Notebook) -> None:
    interrupted(notebook, "!sleep 1000\ntime.sleep(100)")
    assert_training_is_written_back(notebook)


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
    assert cell.replied - at < MAX_DELAY


def test_a_timeout_interrupts_the_run(notebook: Notebook) -> None:
    cell = notebook.send(f"%%mgpu --gpus 2 --timeout 3\n{TRAIN}time.sleep(100)")
    shown = cell.fails("RunTimeoutError")
    assert "--timeout 3" in shown
    assert "Ranks 0, 1 were at line 9 of the cell: time.sleep(100)" in shown
    assert cell.replied - cell.started < 3 + MAX_DELAY
    assert notebook.value("steps") == 3


def test_waiting_ranks_exit_when_sending_data_is_interrupted(notebook: Notebook) -> None:
    notebook.run("data = torch.ones(2**29)")
    cell = notebook.send("%%mgpu --gpus 2 --strategy none\nfloat(data[0] + data[-1])")
    wait_for(notebook.run_processes, 20, notebook.processes)
    at = notebook.interrupt()
    cell.wait(60)
    # ipykernel raises CancelledError if it is between two of its own steps.
    assert cell.reply["ename"] in ("KeyboardInterrupt", "CancelledError")
    assert notebook.wait_for_ranks_to_exit(30) - at < 5 * MAX_DELAY  # 2 GiB have to be freed
    notebook.run("data[0] = 5")
    again = "%%mgpu --gpus 2 --strategy none\nfloat(data[0] + data[-1])"
    assert notebook.run(again).seen == ["6.0"]
    notebook.run("del data")


def test_an_interrupt_while_ranks_prepare(notebook: Notebook) -> None:
    notebook.run("""
class Slow:
    def __reduce__(self):
        return exec, ("import time; print('unpickling', flush=True); time.sleep(30)",)
slow = Slow()
""")
    cell = notebook.send("%%mgpu --gpus 2\nslow")
    cell.until("unpickling")
    at = notebook.interrupt()
    assert "rank 0 had not begun to run the cell" in cell.fails("KeyboardInterrupt")
    assert "Traceback" not in cell.text() + cell.text("stderr")
    assert cell.replied - at < MAX_DELAY
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


SLOW_TO_PICKLE = """
class Slow:
    def __reduce__(self):
        print("pickling", flush=True)
        time.sleep(30)
        return Slow, ()
slow = Slow()
"""


def test_an_interrupt_before_ranks_have_started(notebook: Notebook) -> None:
    notebook.run(SLOW_TO_PICKLE)
    cell = notebook.send("%%mgpu --gpus 2\nslow")
    cell.until("pickling")
    at = notebook.interrupt()
    shown = cell.fails("KeyboardInterrupt")
    assert "stopped before its ranks had started" in shown
    assert "nbmgpu/" not in shown
    assert cell.replied - at < MAX_DELAY
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]
