"""A failing cell raises the rank's own exception, with line numbers of the cell."""

from __future__ import annotations

import re

import pytest
from kernels import Notebook

RANK = "rank = dist.get_rank()\n"
MAX_DELAY = 2.0
"""Seconds from the exception in a rank to the cell's reply."""


def test_an_error_in_rank_1_is_shown_while_rank_0_blocks_in_a_collective(
    notebook: Notebook,
) -> None:
    cell = notebook.send(f"""%%mgpu --gpus 2 --strategy none
{RANK}x = torch.ones(1)
if rank == 1:
    time.sleep(0.5)
    raise ValueError(time.time())
dist.all_reduce(x)
""")
    shown = cell.fails("ValueError")
    assert "Rank 1 of 2 raised ValueError, line 6 of the cell" in shown
    assert "----> 6     raise ValueError(time.time())" in shown
    assert "Connection" not in shown
    raised = float(cell.reply["evalue"])
    assert notebook.value("time.time()") - raised < MAX_DELAY
    assert cell.text("stderr") == ""


def test_an_error_in_rank_1_of_a_training_cell(notebook: Notebook) -> None:
    notebook.run("""class Broken(Exception):
    def __init__(self, text, size):
        super().__init__(text)
        self.size = size

def check(x):
    size = len(x)
    raise Broken("too much", size)
""")
    cell = notebook.send(f"""%%mgpu --gpus 2
{RANK}for x, y in loader:
    if rank == 1:
        check(x)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""")
    shown = cell.fails("Broken")
    assert "Rank 1 of 2 raised Broken" in shown
    assert "check(x)" in shown
    assert '----> 8     raise Broken("too much", size)' in shown, (
        "the line of the cell that defines check"
    )
    assert notebook.value("isinstance(sys.last_value, Broken), sys.last_value.size") == (True, 8)


@pytest.mark.parametrize(
    ("error", "epochs", "stop"),
    [("RankError", "1 + rank", "False"), ("RankError", "1", "rank == 0 and number == 1")],
    ids=["next epoch", "backward pass"],
)
def test_waiting_for_a_rank_that_has_finished_is_an_error(
    notebook: Notebook, error: str, epochs: str, stop: str
) -> None:
    shown = notebook.send(f"""%%mgpu --gpus 2 --exact never
{RANK}for epoch in range({epochs}):  # instead of a clock
    for number, (x, y) in enumerate(loader):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if {stop}:
            break
""").fails(error)
    assert "Rank 1 of 2 raised" in shown
    *_, what, way = shown.splitlines()
    assert "had finished the cell while" in what
    assert "they did different numbers of steps." in what
    assert way.startswith("Try: no `if`, `break` or `continue` that depends on a clock")


def test_a_deadlock_of_ranks_is_an_error(notebook: Notebook) -> None:
    shown = notebook.send("""%%mgpu --gpus 2 --exact never
for epoch in range(2):
    for x, y in DataLoader(loader.dataset, 9):
        for one, target in zip(x, y):  # 5 samples on rank 0, 4 on rank 1; 1 each in the last batch
            F.cross_entropy(model(one), target).backward()
        optimizer.step()
""").fails("RankError")
    assert "Rank 1 of 2 raised" in shown
    assert "Rank 0 waits for this rank in backward pass 11, while this rank, after 10" in shown


def test_the_exception_type_is_kept_for_torch_and_for_classes_of_the_cell(
    notebook: Notebook,
) -> None:
    shown = notebook.send("""%%mgpu --gpus 2
raise torch.OutOfMemoryError("no memory")
""").fails("OutOfMemoryError")
    assert re.search("Rank [01] of 2", shown)  # the one that failed first
    assert notebook.value("isinstance(sys.last_value, torch.OutOfMemoryError)")
    notebook.send("%%mgpu --gpus 2\nclass Mine(Exception): pass\nraise Mine(1)").fails("Mine")
    assert notebook.value("isinstance(sys.last_value, Mine)")


def test_the_exception_can_be_caught(notebook: Notebook) -> None:
    cell = notebook.run("""
try:
    nbmgpu.run("int('a')", gpus=2)
except ValueError as error:
    print("caught", error, "line 1 of the cell" in str(error.__cause__))
""")
    assert "caught invalid literal for int() with base 10: 'a' True" in cell.text()


def test_training_before_an_error_is_written_back(notebook: Notebook) -> None:
    notebook.run("before = model.weight.detach().clone()")
    notebook.send("""%%mgpu --gpus 2
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
steps = 3
1 / 0
""").fails("ZeroDivisionError")
    assert notebook.value("steps, torch.equal(before, model.weight)") == (3, False)


def test_a_syntax_error_is_shown_like_ipythons(notebook: Notebook) -> None:
    cell = notebook.send("%%mgpu --gpus 2\nx = 1\nif x\n    y = 1")
    lines = cell.fails("SyntaxError").splitlines()
    assert [line.strip() for line in lines] == [
        lines[0].strip(), "if x", "^", "SyntaxError: expected ':'",
    ]  # fmt: skip
    assert lines[0] == f"  Cell In[{cell.reply['execution_count']}], line 3"


def test_line_numbers_count_the_magic_line_and_blank_lines(notebook: Notebook) -> None:
    cell = notebook.send("%%mgpu --gpus 2\n\n   \nx = 1\n1 / 0")
    shown = cell.fails("ZeroDivisionError")
    assert "line 5 of the cell: 1 / 0" in shown
    assert f"Cell In[{cell.reply['execution_count']}], line 5" in shown
    assert "----> 5 1 / 0" in shown


def test_an_indented_body_keeps_its_line_numbers(notebook: Notebook) -> None:
    shown = notebook.send("%%mgpu --gpus 2\n    x = 1\n    1 / 0").fails("ZeroDivisionError")
    assert "line 3 of the cell: 1 / 0" in shown


def test_a_cell_magic_inside_the_cell_still_runs(notebook: Notebook) -> None:
    notebook.run("%%mgpu --gpus 2\n%%capture\ninside = 6 * 7")
    assert notebook.value("inside") == 42


def test_nbmgpu_run_counts_lines_from_its_source(notebook: Notebook) -> None:
    shown = notebook.send("nbmgpu.run('x = 1\\n1 / 0', gpus=2)").fails("ZeroDivisionError")
    assert "line 2 of the cell: 1 / 0" in shown


def test_a_traceback_has_the_cells_execution_count(notebook: Notebook) -> None:
    cell = notebook.send("%%mgpu --gpus 2\n1 / 0")
    shown = cell.fails("ZeroDivisionError")
    assert f"Cell In[{cell.reply['execution_count']}], line 2" in shown


def test_an_empty_cell_is_an_error_naming_the_magic(notebook: Notebook) -> None:
    cell = notebook.send("%%mgpu --gpus 2")
    cell.fails("UsageError")
    shown = cell.text("stderr")
    assert "%%mgpu is a cell magic, but the cell body is empty" in shown
    assert "awaited" not in shown


def test_an_unknown_name_is_an_error_before_launch(notebook: Notebook) -> None:
    runs = len(list(notebook.runs.iterdir()))
    shown = notebook.send("%%mgpu --gpus 2\nprint(modell)").fails("UnknownNameError")
    assert "Line 2 of the cell, `print(modell)`, reads 'modell'" in shown
    assert "Try: print(model)" in shown
    assert "magic.py" not in shown
    assert len(list(notebook.runs.iterdir())) == runs


def test_unpicklable_variables_are_named(notebook: Notebook) -> None:
    notebook.run("import threading; lock = threading.Lock()")
    shown = notebook.send("%%mgpu --gpus 2\nlock").fails("SerializationError")
    assert "`lock`" in shown
    assert "Try:" in shown
    assert "magic.py" not in shown


def test_a_strategy_error_is_shown_without_internal_frames(notebook: Notebook) -> None:
    cell = notebook.send("""%%mgpu --gpus 2 --strategy zero1
newton = torch.optim.LBFGS(model.parameters())
for x, y in loader:
    def closure():
        newton.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss
    newton.step(closure)
""")
    shown = cell.fails("StrategyError")
    assert "zero1 cannot train with LBFGS" in shown
    assert "line 3 of the cell: for x, y in loader:" in shown
    assert "nbmgpu/" not in shown


def test_unknown_flags_and_subcommands_suggest_the_closest(notebook: Notebook) -> None:
    assert "--gpus" in notebook.send("%%mgpu --gpuss 2\n1").fails("OptionError")
    assert "%mgpu runs" in notebook.send("%mgpu rums").fails("OptionError")
    assert "already" in notebook.send("%%mgpu --gpus 2\nnbmgpu.run('1')").fails("LaunchError")


@pytest.mark.parametrize(
    ("end", "ename", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "RankKilledError", "SIGKILL: it was killed"),
        ("import ctypes; ctypes.string_at(0)", "RankKilledError", "SIGSEGV: it crashed"),
        ("os.abort()", "RankKilledError", "SIGABRT: compiled code gave up"),
        ("os._exit(3)", "RankError", "exited with code 3 without an exception"),
        ("os._exit(0)", "RankError", "exited with code 0 without an exception"),
        ("sys.exit(3)", "SystemExit", "3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", "was interrupted, by its cell"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_an_exit_without_an_exception_is_explained(
    notebook: Notebook, rank: int, end: str, ename: str, message: str
) -> None:
    cell = notebook.send(f"""%%mgpu --gpus 2 --strategy none
print("last output")
if dist.get_rank() == {rank}:
    {end}
time.sleep(60)
""")
    shown = cell.fails(ename)
    assert message in shown
    if ename.startswith("Rank"):
        assert f"Rank {rank} of 2" in shown
        assert "last output" in shown or "Fatal Python error" in shown, "the log's end"
    assert cell.replied - cell.started < 10
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


def test_a_crash_in_compiled_code_shows_the_python_line(notebook: Notebook) -> None:
    shown = notebook.send("""%%mgpu --gpus 2
import ctypes
def crash():
    ctypes.string_at(0)
crash()
""").fails("RankKilledError")
    assert "line 4 in crash" in shown
