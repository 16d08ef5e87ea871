"""``Run``: reads, stops and deletes one run; ``list_runs`` and ``find_run`` find them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbmgpu.errors import LaunchError, OptionError, format_message
from nbmgpu.system.processes import process_is_alive

from .engine_plugins import run_control
from .events import ACTIVE_STATES, Event, EventTail, RunState
from .folder import COLLECTED_FILE, STOP_FILE, runs_root, write_atomically
from .record import RunRecord
from .view import RunView

if TYPE_CHECKING:
    import pandas as pd

FIRST_RUN = "%%mgpu above a cell that trains"
"""What to type where there is no run yet."""

NAMED = 5
"""Runs that an error names where a prefix fits several."""


class Run:
    """One run: its folder and a view of what its ranks have said so far.

    ``view`` is the sum of all that was read; ``poll`` hands out what it has not handed
    out before, so that looking at ``state`` in between loses nothing.  ``results`` maps a
    rank to what it brought back (small values only for ranks other than 0) once
    the kernel that started the run has collected them.
    """

    def __init__(self, folder: Path, ranks: bool = True) -> None:
        """Open the run in ``folder``.

        Without ``ranks`` only what kernel and launcher say is read: enough to know whether the
        run is over, and soon read however much the ranks have said.

        Raises:
            FileNotFoundError: there is no ``run.json`` in it.
            ValueError, TypeError: it is another version's, or not whole.
        """
        self.folder = folder
        self.record = RunRecord(**json.loads((folder / "run.json").read_text()))
        self.view = RunView(self.record.world_size)
        self.results: dict[int, dict[str, Any]] = {}
        names = [f"rank-{rank}" for rank in range(self.record.world_size if ranks else 0)]
        self._unseen: list[Event] = []
        self._tails = [EventTail(self.events_path(n)) for n in ["kernel", "launcher", *names]]

    @classmethod
    def create(cls, record: RunRecord, cell: str) -> Run:
        """Make the folder of a new run, readable by its owner alone.

        Raises:
            LaunchError: it cannot be written, as on a full disk.
        """
        folder = runs_root() / record.id
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in ("events", "logs"):
                (folder / name).mkdir()
            (folder / "cell.py").write_text(cell, encoding="utf-8")
            write_atomically(folder / "run.json", json.dumps(dataclasses.asdict(record), indent=1))
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            what = f"The run's folder cannot be written: {error.strerror or error}"
            way = "set NBMGPU_RUNS to a folder with room, or remove old runs there"
            raise LaunchError(format_message(what, f"It would be {folder}", way)) from None
        return cls(folder)

    @property
    def id(self) -> str:
        """The run's name, ``YYYYMMDD-HHMMSS-xxxxx`` in UTC; ``find_run`` takes unique prefixes."""
        return self.record.id

    @property
    def cell(self) -> str:
        """The source that the ranks run; empty once somebody has removed the folder."""
        try:
            return (self.folder / "cell.py").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def refresh(self) -> None:
        """Read the new events of all processes into ``view``, by time."""
        events = sorted((e for tail in self._tails for e in tail.read()), key=lambda e: e.time)
        for event in events:
            self.view.add(event)
        self._unseen += events

    def poll(self) -> list[Event]:
        """Return the events that no earlier call has returned."""
        self.refresh()
        events, self._unseen = self._unseen, []
        return events

    @property
    def state(self) -> RunState:
        """How far the run is, or how it has ended."""
        self.refresh()
        if self.view.ending is None and not self._is_alive():
            self.refresh()
            return self.view.ending or "lost"
        return self.view.state

    @property
    def over(self) -> bool:
        """Whether no process of the run is left."""
        return self.state not in ACTIVE_STATES

    def _is_alive(self) -> bool:
        """Return what the run's engine says; without it, only events tell how the run ends."""
        control = run_control(self.record.engine)
        return control is None or control.is_alive(self)

    def stop(self, force: bool = False) -> None:
        """Ask for the end of the run: ranks are interrupted, then killed if they do not react.

        Rank 0 has a minute to write what was trained.

        Args:
            force: kill all ranks at once; nothing comes back.  A later call without it does not
                take it back.
        """
        requested = self._write_stop_file(force)
        if (control := run_control(self.record.engine)) is not None:
            control.stop(self, force, requested)

    def _write_stop_file(self, force: bool) -> bool:
        """Write the request into the run folder; return whether it is there."""
        path = self.folder / STOP_FILE
        try:
            if force:
                write_atomically(path, "force")
                return True
            with suppress(FileExistsError), path.open("x") as file:
                file.write("stop")  # an empty file means the same
        except OSError:  # the disk is full
            return path.exists() and not force
        return True

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether somebody has stopped the run, which may still go on for a while."""
        return (self.folder / STOP_FILE).exists()

    def wait(self, timeout: float | None = None) -> RunState:
        """Block until the run is over or ``timeout`` seconds went by.

        Returns:
            The state: how it has ended; if the time has gone by, starting or running.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.over and (deadline is None or time.monotonic() < deadline):
            time.sleep(0.05)
        return self.state

    def events_path(self, who: str) -> Path:
        """Path of the events of ``who``: "kernel", "launcher" or "rank-K"."""
        return self.folder / "events" / f"{who}.jsonl"

    def log_path(self, rank: int = 0) -> Path:
        """Path of everything that ``rank`` wrote to stdout and stderr."""
        return self.folder / "logs" / f"rank-{rank}.log"

    def log(self, rank: int = 0) -> str:
        """Return everything that ``rank`` wrote to stdout and stderr."""
        try:
            return self.log_path(rank).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    @property
    def metrics(self) -> pd.DataFrame:
        """Curves averaged over ranks: a column of float64 per metric, a row per step (int64).

        A metric that has no point at a step is nan there.
        """
        import pandas as pd

        self.refresh()
        columns = {name: curve.series() for name, curve in self.view.curves.items()}
        frame = pd.DataFrame(columns).sort_index()
        frame.index.name = "step"
        return frame

    @property
    def duration(self) -> float:
        """Seconds from the request to the end, to now, or to the last word of a lost run."""
        state = self.state
        now = time.time() if state in ACTIVE_STATES else self.view.last_time
        return max(now - self.record.created, 0.0)

    @property
    def to_collect(self) -> bool:
        """Whether the kernel that started the run lives and has not taken what came back."""
        kernel = self.record.kernel_pid, self.record.kernel_create_time
        return not (self.folder / COLLECTED_FILE).exists() and process_is_alive(*kernel)

    def delete(self) -> None:
        """Remove the folder of a run that is over.

        Raises:
            OptionError: the run still goes on, or its notebook has not got its results yet.
        """
        if not self.over:
            raise OptionError(
                format_message(f"Run {self.id} still goes on", instead=f"%mgpu stop {self.id}")
            )
        if self.to_collect:
            what = f"The results of run {self.id} are not in its notebook yet"
            instead = f"%mgpu attach {self.id} in that notebook, or end its kernel"
            raise OptionError(format_message(what, instead=instead))
        shutil.rmtree(self.folder)

    def __repr__(self) -> str:
        """Show what a person wants to know at a glance."""
        return (
            f"<Run {self.id}: {self.state}, {self.record.strategy} on "
            f"{self.record.world_size} rank(s), {self.duration:.1f} s, folder={str(self.folder)!r}>"
        )


def list_runs(begins: str = "") -> Iterator[Run]:
    """Yield every run whose id ``begins`` so, newest first; what cannot be read is passed over."""
    folders = [folder for folder in runs_root().glob("*") if folder.name.startswith(begins)]
    for folder in sorted(folders, reverse=True):
        try:
            yield Run(folder)
        except (OSError, ValueError, TypeError):
            continue


def find_run(name: str = "") -> Run:
    """Return the run whose id starts with ``name``; the newest one when it is empty.

    Raises:
        OptionError: none or several match.
    """
    found = list(itertools.islice(list_runs(name), NAMED if name else 1))
    if not found:
        what = f"There is no run {name!r}" if name else "There is no run yet"
        raise OptionError(format_message(what, instead="%mgpu runs" if name else FIRST_RUN))
    if name and len(found) > 1 and found[0].id != name:
        ids = ", ".join(run.id for run in found)
        raise OptionError(
            format_message(f"{name!r} names several runs: {ids}", instead="a longer prefix")
        )
    return found[0]
