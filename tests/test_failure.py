"""What a run that is over has to raise."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from staged import Stage, StagedRun

from nbmgpu.errors import LaunchError, RankError, RankKilledError, RunTimeoutError
from nbmgpu.rank.reporting import failures
from nbmgpu.runs.events import Exited, Failure, Status
from nbmgpu.runs.failure import exception_of


class Demanding(Exception):
    """Its ``__init__`` wants more than its ``args`` have."""

    def __init__(self, text: str, size: int) -> None:
        super().__init__(text)
        self.size = size
        self.handle = open  # stays
        self.generator = (n for n in ())  # cannot travel


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


def test_a_run_that_finished_raises_nothing(stage: Stage) -> None:
    staged = stage()
    staged.start()
    staged.finish()
    assert exception_of(staged.polled()) is None


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), KeyError("k"), OSError(2, "no such file", "path"), Demanding("much", 3)],
)
def test_the_exception_is_the_ranks_own(stage: Stage, error: Exception) -> None:
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
    if isinstance(got, Demanding):
        assert got.size == 3


def test_the_earliest_error_is_the_cause(stage: Stage) -> None:
    staged = stage()
    staged.start()
    report(staged, 1, ValueError("the cause"))
    staged.exit(1, 1)
    report(staged, 0, RuntimeError("Connection closed by peer"))
    staged.launcher.emit(Exited, of_rank=0, code=1, asked=True)
    staged.end("failed")
    assert isinstance(raised(staged), ValueError)


def test_a_rank_that_only_lost_its_peer_is_not_the_cause(stage: Stage) -> None:
    staged = stage()
    staged.start()
    staged.exit(1, -9)
    report(staged, 0, RuntimeError("Connection closed by peer"))
    staged.launcher.emit(Exited, of_rank=0, code=1, asked=True)
    staged.end("failed")
    got = raised(staged)
    assert isinstance(got, RankKilledError)
    assert "Rank 1 of 2 was ended by SIGKILL" in str(got)


def test_an_exception_that_cannot_travel_is_told(stage: Stage) -> None:
    staged = stage()
    staged.start()
    staged.fail(0, type="Strange", message="cannot be rebuilt")
    staged.exit(0, 1)
    staged.end("failed")
    got = raised(staged)
    assert isinstance(got, RankError)
    assert str(got) == "Strange: cannot be rebuilt"


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (-9, RankKilledError, "SIGKILL: it was killed, probably because the machine ran out"),
        (-11, RankKilledError, "SIGSEGV: it crashed in compiled code"),
        (-35, RankKilledError, "signal 35: see its log"),
        (3, RankError, "exited with code 3 without an exception"),
        (0, RankError, "exited with code 0 without an exception"),
    ],
)
def test_an_end_without_an_exception_is_explained(
    stage: Stage, code: int, kind: type[Exception], says: str
) -> None:
    staged = stage()
    staged.start()
    staged.log(1, "the last line\n")
    staged.exit(1, code)
    staged.end("failed")
    got = raised(staged)
    assert type(got) is kind
    assert says in str(got)
    assert str(got).endswith("the last line")


def test_a_crash_shows_pythons_own_report_from_its_beginning(stage: Stage) -> None:
    staged = stage()
    staged.start()
    frames = "".join(f"  File {n}\n" for n in range(40))
    staged.log(0, f"what was said\nFatal Python error: Segmentation fault\n\n{frames}")
    staged.exit(0, -11)
    staged.end("failed")
    text = str(raised(staged))
    assert "Fatal Python error: Segmentation fault\n\n  File 0\n" in text
    assert "File 39" not in text
    assert "what was said" not in text


def test_a_rank_that_never_came_up_shows_the_launchers_log(stage: Stage) -> None:
    staged = stage()
    (staged.run.folder / "logs" / "torchrun.log").write_text("no such interpreter")
    staged.exit(0, 1)
    staged.end("failed")
    got = raised(staged)
    assert isinstance(got, LaunchError)
    assert "did not start" in str(got)
    assert "no such interpreter" in str(got)


def test_stops_and_timeouts_say_what_is_back(stage: Stage) -> None:
    staged = stage(timeout=5.0)
    staged.start()
    staged.end("timeout")
    assert isinstance(raised(staged), RunTimeoutError)
    assert "--timeout 5" in str(raised(staged))
    staged = stage()
    staged.start()
    staged.end("stopped")
    assert isinstance(raised(staged), KeyboardInterrupt)
    assert "rank 0 was killed before" in str(raised(staged))
    staged.run.results[0] = {}
    assert "is back in the notebook" in str(raised(staged))


def test_a_hang_shows_where_each_rank_stood(stage: Stage) -> None:
    staged = stage(3, timeout=5.0)
    staged.start()
    for rank, place in enumerate(["line 2 of the cell: a()", "line 3 of the cell: b()", ""]):
        staged.ranks[rank].emit(Status, state="stopped", detail=place)
    staged.end("timeout")
    assert str(raised(staged)).splitlines()[1:] == [
        "Rank 0 was at line 2 of the cell: a()",
        "Rank 1 was at line 3 of the cell: b()",
    ]


def test_a_rank_interrupted_by_others_than_us(stage: Stage) -> None:
    staged = stage()
    staged.start()
    staged.ranks[1].emit(Status, state="stopped")
    staged.exit(1, 1)
    staged.end("failed")
    got = raised(staged)
    assert isinstance(got, KeyboardInterrupt)
    assert "Rank 1 of 2 was interrupted" in str(got)


def test_a_line_that_the_cell_does_not_have_is_left_out(stage: Stage) -> None:
    staged = stage(cell="x = 1\n")
    staged.start()
    staged.fail(0, line=99)
    staged.exit(0, 1)
    staged.end("failed")
    assert "of the cell" not in str(raised(staged).__cause__)


def test_a_failure_carries_only_what_can_travel(stage: Stage) -> None:
    staged = stage()

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    failure = failures.report(staged.ranks[0], Unprintable(), "")
    assert isinstance(failure, Failure)
    assert failure.message == "(the exception cannot be printed)"
    assert pickle.loads(pickle.dumps(failure)) == failure
