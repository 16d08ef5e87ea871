"""The exception that a finished run raises."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from staged import Stage, StagedRun

from nbmgpu.errors import LaunchError, RankError, RankKilledError, RunTimeoutError
from nbmgpu.rank.reporting import failures
from nbmgpu.report.summary import summary_text
from nbmgpu.runs.events import Exited, Failure, Status
from nbmgpu.runs.failure import exception_of


class ArgumentMismatch(Exception):
    """Its ``__init__`` has more parameters than its ``args``."""

    def __init__(self, text: str, size: int) -> None:
        super().__init__(text)
        self.size = size
        self.handle = open  # picklable
        self.generator = (n for n in ())  # not picklable


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    with Stage() as stage:
        yield stage


def raised(staged: StagedRun) -> BaseException:
    error = exception_of(staged.polled())
    assert error is not None
    return error


def report(staged: StagedRun, rank: int, error: BaseException) -> None:
    try:
        raise error
    except BaseException as caught:
        failures.report(staged.ranks[rank], caught, staged.run.cell)


def test_a_successful_run_raises_nothing(stage: Stage) -> None:
    staged = stage()
    staged.start()
    staged.finish()
    assert exception_of(staged.polled()) is None


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        KeyError("k"),
        OSError(2, "no such file", "path"),
        ArgumentMismatch("much", 3),
    ],
)
def test_the_ranks_exception_is_raised(stage: Stage, error: Exception) -> None:
    staged = stage()
    staged.start()
    report(staged, 1, error)
    staged.exit(1, 1)
    staged.end("failed")
    got = raised(staged)
    assert type(got) is type(error)
    assert got.args == error.args
    assert str(got) == str(error)
    assert "Rank 1 of 2 raised" in str(got.__cause__)
    if isinstance(got, ArgumentMismatch):
        assert got.size == 3


def test_the_earliest_error_is_the_cause(stage: Stage) -> None:
    staged = stage()
    staged.start()
    report(staged, 1, ValueError("the cause"))
    staged.exit(1, 1)
    report(staged, 0, RuntimeError("Connection closed by peer"))
    staged.launcher.emit(Exited, of_rank=0, code=1, terminating=True)
    staged.end("failed")
    assert isinstance(raised(staged), ValueError)


def test_a_connection_error_is_not_the_cause(stage: Stage) -> None:
    staged = stage()
    staged.start()
    staged.exit(1, -9)
    report(staged, 0, RuntimeError("Connection closed by peer"))
    staged.launcher.emit(Exited, of_rank=0, code=1, terminating=True)
    staged.end("failed")
    got = raised(staged)
    assert isinstance(got, RankKilledError)
    assert "Rank 1 of 2 was ended by SIGKILL" in str(got)


def test_an_unpicklable_exception_is_a_rank_error(stage: Stage) -> None:
    staged = stage()
    staged.start()
    staged.fail(0, type="Strange", message="cannot be rebuilt")
    staged.exit(0, 1)
    staged.end("failed")
    got = raised(staged)
    assert isinstance(got, RankError)
    assert str(got) == "Strange: cannot be rebuilt"


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (-9, RankKilledError, "SIGKILL: it was killed, probably because the machine ran out"),
        (-11, RankKilledError, "SIGSEGV: it crashed in compiled code"),
        (-35, RankKilledError, "signal 35: see its log"),
        (3, RankError, "exited with code 3 without an exception"),
        (0, RankError, "exited with code 0 without an exception"),
    ],
)
def test_an_exit_without_an_exception_is_explained(
    stage: Stage, code: int, kind: type[Exception], message: str
) -> None:
    staged = stage()
    staged.start()
    staged.log(1, "the last line\n")
    staged.exit(1, code)
    staged.end("failed")
    got = raised(staged)
    assert type(got) is kind
    assert message in str(got)
    assert str(got).endswith("the last line")


def test_a_crash_shows_the_start_of_faulthandlers_report(stage: Stage) -> None:
    staged = stage()
    staged.start()
    frames = "".join(f"  File {n}\n" for n in range(40))
    staged.log(0, f"earlier output\nFatal Python error: Segmentation fault\n\n{frames}")
    staged.exit(0, -11)
    staged.end("failed")
    text = str(raised(staged))
    assert "Fatal Python error: Segmentation fault\n\n  File 0\n" in text
    assert "File 39" not in text
    assert "earlier output" not in text


def test_a_rank_that_did_not_start_shows_the_launchers_log(stage: Stage) -> None:
    staged = stage()
    (staged.run.folder / "logs" / "torchrun.log").write_text("no such interpreter")
    staged.exit(0, 1)
    staged.end("failed")
    got = raised(staged)
    assert isinstance(got, LaunchError)
    assert "did not start" in str(got)
    assert "no such interpreter" in str(got)


def test_ranks_that_no_node_has_started_are_not_reported_as_killed(stage: Stage) -> None:
    """They count as killed where their node is lost, or never reports them."""
    staged = stage()
    staged.exit(0, -9)
    staged.end("failed")
    text = str(raised(staged))
    assert "was not started by its node" in text
    summary = summary_text(staged.run)
    assert "not started" in summary
    assert "SIGKILL" not in text + summary


def test_stops_and_timeouts_report_what_was_written_back(stage: Stage) -> None:
    staged = stage(timeout=5.0)
    staged.start()
    staged.end("timeout")
    assert isinstance(raised(staged), RunTimeoutError)
    assert "--timeout 5" in str(raised(staged))
    staged = stage()
    staged.start()
    staged.end("stopped")
    assert isinstance(raised(staged), KeyboardInterrupt)
    assert "rank 0 ended before" in str(raised(staged))
    staged.run.results[0] = {}
    assert "is back in the notebook" in str(raised(staged))


def test_a_timeout_shows_the_line_of_each_rank(stage: Stage) -> None:
    staged = stage(3, timeout=5.0)
    staged.start()
    for rank, place in enumerate(["line 2 of the cell: a()", "line 3 of the cell: b()", ""]):
        staged.ranks[rank].emit(Status, state="stopped", detail=place)
    staged.end("timeout")
    assert str(raised(staged)).splitlines()[1:] == [
        "Rank 0 was at line 2 of the cell: a()",
        "Rank 1 was at line 3 of the cell: b()",
    ]


def test_a_rank_interrupted_by_another_process(stage: Stage) -> None:
    staged = stage()
    staged.start()
    staged.ranks[1].emit(Status, state="stopped")
    staged.exit(1, 1)
    staged.end("failed")
    got = raised(staged)
    assert isinstance(got, KeyboardInterrupt)
    assert "Rank 1 of 2 was interrupted" in str(got)


def test_an_invalid_line_number_is_omitted(stage: Stage) -> None:
    staged = stage(cell="x = 1\n")
    staged.start()
    staged.fail(0, line=99)
    staged.exit(0, 1)
    staged.end("failed")
    assert "of the cell" not in str(raised(staged).__cause__)


def test_failure_events_can_be_pickled(stage: Stage) -> None:
    staged = stage()

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    failure = failures.report(staged.ranks[0], Unprintable(), "")
    assert isinstance(failure, Failure)
    assert failure.message == "(the exception cannot be printed)"
    assert pickle.loads(pickle.dumps(failure)) == failure


def test_an_error_within_nbmgpu_is_said_to_be_one(stage: Stage) -> None:
    staged = stage()

    def text(error: BaseException) -> str:
        lines: list[str] = failures.report(staged.ranks[0], error, staged.run.cell).traceback
        return "".join(lines)

    with pytest.raises(AttributeError) as within:
        failures.cell_line(None, "")  # type: ignore[arg-type]
    with pytest.raises(AttributeError) as outside:
        stage.missing  # type: ignore[attr-defined]
    assert "raised in nbmgpu/rank/reporting/failures.py, line" in text(within.value)
    assert "Try: --exact never" in text(within.value)
    assert "nbmgpu, not of your cell" not in text(outside.value)
