"""Why a run did not end well, and what is proposed."""

import time

import pytest

from nbmgpu.report.error_hints import KNOWN, find_hint, split_remedy
from nbmgpu.report.failure_cause import cause

CELL = "\n".join(f"line_{n}()" for n in range(1, 10))


def why(run):
    return cause(run.polled(), run.run.state)


def test_a_run_that_goes_well_has_none(staged):
    run = staged(1)
    run.start()
    assert why(run) is None
    run.finish()
    assert why(run) is None


def test_names_the_rank_the_exception_and_the_cells_line(staged):
    run = staged(2, cell=CELL)
    run.start()
    run.fail(1, "ValueError", "<b>bad</b>", line=5, traceback=("\x1b[31mred\x1b[0m\x07",))
    found = why(run)  # while the others still go on
    assert (found.who, found.what) == ("rank 1", "ValueError: <b>bad</b>")
    assert (found.number, found.line) == (5, "line_5()")
    assert [line.number for line in found.context] == [2, 3, 4, 5, 6, 7, 8]
    assert [line.text for line in found.context if line.failing] == ["line_5()"]
    assert found.traceback == "\x1b[31mred\x1b[0m"
    assert [(other.rank, other.word) for other in found.others] == [(0, "running")]


@pytest.mark.parametrize("line", [0, 999])
def test_does_without_the_cells_line(staged, line):
    run = staged(1)
    run.fail(0, line=line)
    found = why(run)
    assert (found.line, found.context) == ("", [])


@pytest.mark.parametrize(("line", "numbers"), [(1, [1, 2, 3, 4]), (9, [6, 7, 8, 9])])
def test_the_excerpt_ends_where_the_cell_does(staged, line, numbers):
    run = staged(1, cell=CELL)
    run.fail(0, line=line)
    assert [shown.number for shown in why(run).context] == numbers


def test_of_several_failures_the_others_are_told_with_theirs(staged):
    run = staged(3)
    run.start()
    run.fail(1, "ValueError", "first")
    run.fail(2, "RuntimeError", "Connection closed by peer", traceback=("trace",))
    run.exit(2, 1)
    run.exit(0, -15)
    found = why(run)
    assert found.what == "ValueError: first"
    assert [(other.rank, other.word, other.what, other.traceback) for other in found.others] == [
        (0, "ended (SIGTERM)", "", ""),
        (2, "failed as well (exit 1)", "RuntimeError: Connection closed by peer", "trace"),
    ]


def test_a_killed_rank_is_explained_by_its_signal(staged):
    run = staged(2)
    run.start()
    run.exit(1, -9)
    run.exit(0, -15)
    run.end("failed")
    found = why(run)
    assert (found.who, found.what) == ("rank 1", "ended by SIGKILL")
    assert found.why.startswith("It was killed, probably because the machine ran out of memory")
    assert found.remedy.startswith("fewer ranks")


def test_a_connection_that_broke_because_a_rank_was_killed_is_not_the_cause(staged):
    run = staged(2)
    run.start()
    run.fail(0, "RuntimeError", "Connection reset by peer", line=1)
    run.exit(1, -9)
    run.exit(0, 1)
    run.end("failed")
    found = why(run)
    assert (found.who, found.what, found.number) == ("rank 1", "ended by SIGKILL", 0)
    assert [other.what for other in found.others] == ["RuntimeError: Connection reset by peer"]


@pytest.mark.parametrize(("ending", "what"), [("stopped", None), ("timeout", "timed out")])
def test_what_ranks_raise_because_they_are_ended_is_not_the_cause(staged, ending, what):
    run = staged(2, timeout=60.0)
    run.start()
    run.fail(0, "RuntimeError", "Connection reset by peer", line=1)
    run.end(ending)
    found = why(run)
    assert (found and found.what) == what


def test_the_launchers_word_comes_first(staged):
    run = staged(1)
    run.start()
    run.exit(0, -9)
    run.end("failed", "the machine is going down")
    assert why(run).what == "the machine is going down"


def test_a_rank_that_left_without_a_word(staged):
    run = staged(1)
    run.start()
    run.exit(0, 3)
    run.end("failed")
    found = why(run)
    assert found.what == "exited with exit 3 without an exception"
    assert "os._exit" in found.why


def test_a_timeout_says_which(staged):
    run = staged(1, timeout=60.0)
    run.start()
    run.end("timeout")
    found = why(run)
    assert (found.who, found.what) == ("", "timed out")
    assert found.why == "The run took longer than --timeout 60."


def test_a_lost_run(staged):
    run = staged(1, kernel_pid=1, kernel_create_time=-1.0, created=time.time() - 1e6)
    assert "has not recorded how the run ended" in why(run).what


def test_what_an_error_proposes_itself_goes_before_what_is_known(staged):
    run = staged(1)
    run.fail(0, "StrategyError", "CUDA out of memory in zero2.\nTry: --strategy fsdp")
    found = why(run)
    assert found.what == "StrategyError: CUDA out of memory in zero2."
    assert found.remedy == "--strategy fsdp"
    assert found.why.startswith("A GPU is out of memory.")


@pytest.mark.parametrize(
    ("type", "message", "begins"),
    [
        (
            "OutOfMemoryError",
            "CUDA out of memory. Tried to allocate 2 GiB",
            "A GPU is out of memory",
        ),
        ("RuntimeError", "CUDA error: device-side assert triggered", "Usually an index"),
        ("IndexError", "Target 17 is out of bounds.", "A label exceeds"),
        ("IndexError", "index out of range in self", "A label exceeds"),
        ("ValueError", "Expected more than 1 value per channel when training, got ...", "Batch"),
        ("RuntimeError", "Expected all tensors to be on the same device, but found ...", "A te"),
        ("RuntimeError", "Timed out waiting 1800000ms for recv operation", ""),
        ("DistBackendError", "Watchdog caught collective operation timeout", "Ranks waited"),
        ("RuntimeError", "[gloo] Connection closed by peer [127.0.0.1]:1", "Another rank ended"),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (4x8 and 3x3)", "Shapes do"),
        ("ValueError", "Target size (8, 1) must be the same as input size (4, 1)", "Shapes do"),
        ("ValueError", "Expected input batch_size (4) to match target ...", "Shapes do"),
        ("RuntimeError", "shape '[8, -1]' is invalid for input of size 32", "Shapes do"),
        ("RuntimeError", "mat1 and mat2 must have the same dtype, but got ...", "Two tensors"),
        ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Bus error.", "A DataL"),
        ("FileNotFoundError", "[Errno 2] No such file", "Ranks run in the notebook's folder"),
        (
            "RuntimeError",
            "setStorage: sizes [8] ... out of bounds for storage of size 0",
            "Under f",
        ),
        (
            "RuntimeError",
            "In order to use an autograd.Function with functorch transforms",
            "torch.",
        ),
        ("RuntimeError", "Trying to resize storage that is not resizable", "A tensor of the note"),
        ("ZeroDivisionError", "division by zero", ""),
    ],
)
def test_the_diagnosis_of_what_torch_says(type, message, begins):
    found = find_hint(type, message)
    assert found.why.startswith(begins)
    assert bool(found.why) == bool(begins)


def test_a_diagnosis_is_in_sentences():
    for diagnosis in KNOWN.values():
        assert diagnosis.why.endswith(".")
        assert not diagnosis.remedy.endswith(".")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("It broke. Try: something else", ("It broke.", "something else")),
        ("It broke.\nTry: a\nand b", ("It broke.", "a\nand b")),
        ("Retry: no", ("Retry: no", "")),
    ],
)
def test_a_remedy_stands_apart(text, parts):
    assert split_remedy(text) == parts
