"""Follows a run in a terminal: a rank's log, and below it a line with the run's progress."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import TextIO

from nbmgpu.engines.registry import get_engine
from nbmgpu.errors import OptionError, format_message
from nbmgpu.kernel.following_run import wait_for_following_run, was_removed
from nbmgpu.report import text_format
from nbmgpu.report.epoch_count import epochs_in
from nbmgpu.report.progress import bars
from nbmgpu.report.run_line import sparkline
from nbmgpu.report.stopping import stopping
from nbmgpu.report.views.status import run_status
from nbmgpu.runs import polling
from nbmgpu.runs.run import Run

CHUNK = 1 << 16
"""Bytes of a log that are read at once."""

SELDOM = 10.0
"""Seconds between two lines of progress where lines cannot be rewritten, as in a file."""

LOG_POLL = 0.2
"""Seconds between two looks at the log of an active run."""

STARTED_AGAIN = "Run {run} was started again as run {following}."

CLEAR_LINE = "\r\x1b[2K"


class LogFollower:
    """Prints what is new in a log."""

    def __init__(self, path: Path) -> None:
        """Begin at the start of the log at ``path``, which need not exist yet."""
        self._path = path
        self._position = 0
        self._last = b"\n"

    @property
    def is_at_line_start(self) -> bool:
        """Whether a line has ended with what was printed so far."""
        return self._last == b"\n"

    def has_new(self) -> bool:
        """Return whether there is something to print."""
        return self._path.exists() and self._path.stat().st_size > self._position

    def print_new(self) -> None:
        """Print it."""
        if not self.has_new():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            while chunk := file.read(CHUNK):
                sys.stdout.buffer.write(chunk)
                self._last = chunk[-1:]
            self._position = file.tell()
        sys.stdout.flush()


class StatusLine:
    """A line below the log that is rewritten; in a file, a line now and then."""

    def __init__(self, stream: TextIO) -> None:
        """Show nothing yet on ``stream``."""
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._shown = ""
        self._time = -SELDOM

    def show(self, text: str) -> None:
        """Show ``text`` instead of what is shown."""
        if self._is_terminal:
            text = text[: shutil.get_terminal_size().columns - 1]
            if text != self._shown:
                self._write(CLEAR_LINE + text)
                self._shown = text
        elif time.monotonic() - self._time >= SELDOM:
            self._time = time.monotonic()
            self._write(f"{text}\n")

    def clear(self) -> None:
        """Remove it, for other output."""
        if self._shown:
            self._write(CLEAR_LINE)
            self._shown = ""

    def print(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def log_of(run: Run, rank: int) -> Path:
    """Return the log of ``rank``.

    Raises:
        OptionError: the run has no such rank.
    """
    if 0 <= rank < (size := run.record.world_size):
        return run.log_path(rank)
    allowed = f"Ranks: 0 to {size - 1}" if size > 1 else "It has rank 0 only"
    raise OptionError(format_message(f"Run {run.id} has no rank {rank}", allowed, "--rank 0"))


def follow_log(run: Run, rank: int) -> None:
    """Print the log of ``rank`` until ``run`` is over, then those of runs in place of it.

    Raises:
        OptionError: the run has no such rank.
    """
    following: Run | None = run
    while following is not None:
        run, log = following, LogFollower(log_of(following, rank))
        engine = get_engine(run.record.options.engine, run.record.options.detached)
        is_over = False
        while not is_over:
            is_over = run.over or was_removed(run)  # before the log is read: this is all of it
            engine.sync(run)
            log.print_new()
            if not is_over:
                time.sleep(LOG_POLL)
        following = announced_following_run(run)


def announced_following_run(run: Run) -> Run | None:
    """Return the run that goes on in place of ``run``, and say so; None if none does."""
    following = wait_for_following_run(run)
    if following is not None:
        print(STARTED_AGAIN.format(run=run.id, following=following.id), file=sys.stderr, flush=True)
    return following


class RunFollower:
    """Follows a run until it is over, or the user interrupts this."""

    def __init__(self, run: Run, rank: int = 0) -> None:
        """Follow ``run`` and the log of its rank number ``rank``."""
        self._run = run
        self._engine = get_engine(run.record.options.engine, run.record.options.detached)
        self._log = LogFollower(log_of(run, rank))
        self._status = StatusLine(sys.stderr)
        self._epochs = epochs_in(run.cell)
        self._notices: set[str] = set()

    def follow(self) -> None:
        """Print the log, notices and progress until the run is over.

        Raises:
            KeyboardInterrupt: the user does not want to wait any longer; the run goes on.
        """
        try:
            while True:
                over = self._run.over or was_removed(self._run)  # before the log: this is all of it
                self._engine.sync(self._run)
                self._update()
                if over:
                    return
                if self._log.is_at_line_start:
                    self._status.show(self._progress())
                time.sleep(polling.EVENTS.pause(self._run))
        finally:
            self._status.clear()

    def _update(self) -> None:
        if self._log.has_new():
            self._status.clear()
            self._log.print_new()
        for text in text_format.notices(self._run.view):
            if text not in self._notices and self._log.is_at_line_start:
                self._notices.add(text)
                self._status.print(text)

    def _progress(self) -> str:
        """Return state and time, progress bars, the newest value of the main curve."""
        run, state, now = self._run, self._run.state, time.time()
        status = run_status(run, state, stopping(run, state), now, self._epochs)
        curve = sparkline(run.view)
        parts = [
            f"{status.label} {status.elapsed}",
            *(f"{bar.label} {bar.count}".strip() for bar in bars(run.view, self._epochs)),
            f"{curve.name} {curve.last}" if curve.name else "",
            status.remaining,
        ]
        return " · ".join(filter(None, parts))
