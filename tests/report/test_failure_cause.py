"""The cause of a failed run and the suggested remedy."""

import time

import pytest

from nbmgpu.errors import split_remedy
from nbmgpu.report.error_hints import KNOWN, SHAPES, find_hint
from nbmgpu.report.failure_cause import cause
from nbmgpu.runs.events import Verified

CELL = "\n".join(f"line_{n}()" for n in range(1, 10))


def cause_of(run):
    return cause(run.polled(), run.run.state)


def test_successful_runs_have_no_cause(staged):
    run = staged(1)
    run.start()
    assert cause_of(run) is None
    run.finish()
    assert cause_of(run) is None


def test_an_exception_has_rank_message_and_line(staged):
    run = staged(2, cell=CELL)
    run.start()
    run.fail(1, "ValueError", "<b>bad</b>", line=5, traceback=("\x1b[31mred\x1b[0m\x07",))
    found = cause_of(run)  # while other ranks still run
    assert (found.origin, found.error) == ("rank 1", "ValueError: <b>bad</b>")
    assert (found.number, found.line) == (5, "line_5()")
    assert [line.number for line in found.context] == [2, 3, 4, 5, 6, 7, 8]
    assert [line.text for line in found.context if line.failing] == ["line_5()"]
    assert found.traceback == "\x1b[31mred\x1b[0m"
    assert [(other.rank, other.label) for other in found.others] == [(0, "running")]


@pytest.mark.parametrize("line", [0, 999])
def test_unknown_lines_have_no_excerpt(staged, line):
    run = staged(1)
    run.fail(0, line=line)
    found = cause_of(run)
    assert (found.line, found.context) == ("", [])


@pytest.mark.parametrize(("line", "numbers"), [(1, [1, 2, 3, 4]), (9, [6, 7, 8, 9])])
def test_the_excerpt_is_limited_to_the_cell(staged, line, numbers):
    run = staged(1, cell=CELL)
    run.fail(0, line=line)
    assert [shown.number for shown in cause_of(run).context] == numbers


def test_other_failures_are_listed(staged):
    run = staged(3)
    run.start()
    run.fail(1, "ValueError", "first")
    run.fail(2, "RuntimeError", "Connection closed by peer", traceback=("trace",))
    run.exit(2, 1)
    run.exit(0, -15)
    found = cause_of(run)
    assert found.error == "ValueError: first"
    assert [(other.rank, other.label, other.error, other.traceback) for other in found.others] == [
        (0, "ended (SIGTERM)", "", ""),
        (2, "failed as well (exit 1)", "RuntimeError: Connection closed by peer", "trace"),
    ]


def test_a_killed_rank_is_explained_by_its_signal(staged):
    run = staged(2)
    run.start()
    run.exit(1, -9)
    run.exit(0, -15)
    run.end("failed")
    found = cause_of(run)
    assert (found.origin, found.error) == ("rank 1", "ended by SIGKILL")
    begins = "It was killed, probably because the machine ran out of memory"
    assert found.explanation.startswith(begins)
    assert found.remedy.startswith("fewer ranks")


def test_connection_errors_after_a_kill_are_not_the_cause(staged):
    run = staged(2)
    run.start()
    run.fail(0, "RuntimeError", "Connection reset by peer", line=1)
    run.exit(1, -9)
    run.exit(0, 1)
    run.end("failed")
    found = cause_of(run)
    assert (found.origin, found.error, found.number) == ("rank 1", "ended by SIGKILL", 0)
    assert [other.error for other in found.others] == ["RuntimeError: Connection reset by peer"]


@pytest.mark.parametrize(("ending", "what"), [("stopped", None), ("timeout", "timed out")])
def test_errors_of_ranks_that_are_ended_are_not_the_cause(staged, ending, what):
    run = staged(2, timeout=60.0)
    run.start()
    run.fail(0, "RuntimeError", "Connection reset by peer", line=1)
    run.end(ending)
    found = cause_of(run)
    assert (found and found.error) == what


def test_the_launchers_message_takes_precedence(staged):
    run = staged(1)
    run.start()
    run.exit(0, -9)
    run.end("failed", "the machine is going down")
    assert cause_of(run).error == "the machine is going down"


def test_an_exit_without_an_exception(staged):
    run = staged(1)
    run.start()
    run.exit(0, 3)
    run.end("failed")
    found = cause_of(run)
    assert found.error == "exited with exit 3 without an exception"
    assert "os._exit" in found.explanation


def test_a_timeout_has_its_limit(staged):
    run = staged(1, timeout=60.0)
    run.start()
    run.end("timeout")
    found = cause_of(run)
    assert (found.origin, found.error) == ("", "timed out")
    assert found.explanation == "The run took longer than --timeout 60."


def test_a_lost_run(staged):
    run = staged(1, pid=1, create_time=-1.0, created=time.time() - 1e6)
    assert "has not recorded how the run ended" in cause_of(run).error


def test_the_remedy_of_an_error_takes_precedence_over_hints(staged):
    run = staged(1)
    run.fail(0, "StrategyError", "CUDA out of memory in zero2.\nTry: --strategy fsdp")
    found = cause_of(run)
    assert found.error == "StrategyError: CUDA out of memory in zero2."
    assert found.remedy == "--strategy fsdp"
    assert found.explanation.startswith("A GPU is out of memory.")


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
        ("EOFError", "EOF when reading a line", "input() cannot ask"),
        ("_ArrayMemoryError", "Unable to allocate 9.09 TiB", "The machine has not"),
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
        ("Unsupported", "Skip inlining `torch.compiler.disable()`d function", "fullgraph=True"),
        ("InternalTorchDynamoError", "UnsafeScriptObjectError: ", "torch's compiler"),
        ("ZeroDivisionError", "division by zero", ""),
    ],
)
def test_hints_for_known_messages(type, message, begins):
    found = find_hint(type, message)
    assert found.explanation.startswith(begins)
    assert bool(found.explanation) == bool(begins)


def test_shapes_are_of_shards_unless_one_device_fails_as_well():
    error = "RuntimeError", "mat1 and mat2 shapes cannot be multiplied (32x32 and 31x4)"
    assert find_hint(*error) is SHAPES
    assert "a literal batch size" in find_hint(*error, of_shards=True).remedy


@pytest.mark.parametrize(("size", "said"), [(64, True), (32, False)])
def test_an_error_with_other_numbers_on_one_device_is_shown(staged, size, said):
    message = "mat1 and mat2 shapes cannot be multiplied ({}x64 and 63x64)"
    there = f"RuntimeError: {message.format(size)}"
    run = staged(2, cell=CELL)
    run.start()
    run.fail(0, "RuntimeError", message.format(32))
    reason = f"the cell raises {there} there"
    run.launcher.emit(Verified, steps=0, is_whole=False, reason=reason)
    on_one_device = f" On one device: {there}." if said else ""
    assert cause_of(run).explanation == f"Shapes do not match.{on_one_device}"


def test_hints_are_sentences():
    for hint in KNOWN.values():
        assert hint.explanation.endswith(".")
        assert not hint.remedy.endswith(".")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("It broke. Try: something else", ("It broke.", "something else")),
        ("It broke.\nTry: a\nand b", ("It broke.", "a\nand b")),
        ("Retry: no", ("Retry: no", "")),
    ],
)
def test_the_remedy_is_split_from_the_message(text, parts):
    assert split_remedy(text) == parts
