"""``Run``: reads, stops and deletes one run."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
import warnings
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbmgpu.errors import LaunchError, OptionError, format_message
from nbmgpu.formatting import format_count
from nbmgpu.system.gc_pause import gc_paused
from nbmgpu.system.processes import process_is_alive

from .checkpoint import Checkpoint, find_checkpoints
from .deletion import check_deletable
from .engine_plugins import run_control
from .event_file import EventTail
from .events import ACTIVE_STATES, Event, RunState
from .folder import COLLECTED_FILE, STOP_FILE, make_run_folder, runs_root, write_atomically
from .labels import RunLabels, read_labels, write_labels
from .profile_table import ProfileTable, profile_table
from .record import RunRecord
from .shard_table import ShardTable, shard_table
from .stop_request import request_stop
from .view import RunView

if TYPE_CHECKING:
    import pandas as pd

MANY_RANKS = 64
"""Above this number of ranks, readers from the start leave out what few notice."""

OF_RUN = "kernel", "launcher", "reference"
"""The names of the files with events that are not a rank's."""

SHOWN = *OF_RUN, "rank-0"
"""Those with events of which every moment is shown: times of steps are those of rank 0."""


class Run:
    """A run: its folder, and the state computed from the events read so far.

    Attributes:
        folder: the run folder.
        record: the content of its ``run.json``.
        view: the state computed from all events read.  ``poll`` returns each event once, also
            those that ``state`` has read in between.
        read_time: seconds that the last ``refresh`` took.
        results: the values that each rank returned (small ones only for ranks other than 0),
            once the kernel that launched the run has collected them.
    """

    def __init__(self, folder: Path, ranks: int | None = None) -> None:
        """Open the run in ``folder``.

        Args:
            folder: the run folder.
            ranks: of how many ranks to read the events; None for all.  Those of kernel and
                launcher are few, and tell whether the run is over.

        Raises:
            FileNotFoundError: it contains no ``run.json``.
            ValueError, TypeError: its ``run.json`` is incomplete, or of another version.
        """
        self.folder = folder
        self.record = RunRecord.from_json((folder / "run.json").read_text())
        self.view = RunView(self.record.world_size)
        self.read_time = 0.0
        self.results: dict[int, dict[str, Any]] = {}
        count = self.record.world_size if ranks is None else min(ranks, self.record.world_size)
        names = [*OF_RUN, *(f"rank-{rank}" for rank in range(count))]
        self._unseen: list[Event] = []
        self._tails = [
            EventTail(self.events_path(name), count > MANY_RANKS and name not in SHOWN)
            for name in names
        ]

    @classmethod
    def create(cls, record: RunRecord, cell: str) -> Run:
        """Create the folder of a new run, which only its owner can read.

        Raises:
            LaunchError: the folder cannot be written, as on a full disk.
            OwnershipError: another user has made it before.
        """
        folder = runs_root() / record.id
        try:
            make_run_folder(folder)
            for name in ("events", "logs", "hang"):
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
        """The source that the ranks run; empty if the folder was removed."""
        try:
            return (self.folder / "cell.py").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    @property
    def labels(self) -> RunLabels:
        """The run's name, tags and note."""
        return read_labels(self.folder) or RunLabels.of_record(self.record)

    def label(
        self,
        name: str | None = None,
        tags: Iterable[str] | None = None,
        note: str | None = None,
    ) -> RunLabels:
        """Change the name, the tags or the note; what is None stays.

        Raises:
            OptionError: one is too long, or has characters that cannot be shown.
        """
        old = self.labels
        labels = RunLabels.checked(
            old.name if name is None else name,
            old.tags if tags is None else tags,
            old.note if note is None else note,
        )
        write_labels(self.folder, labels)
        return labels

    def refresh(self) -> None:
        """Read the new events of all processes into ``view``, by time."""
        begun = time.monotonic()
        with gc_paused():
            events = [event for tail in self._tails for event in tail.read()]
            events.sort(key=attrgetter("time"))
            for event in events:
                self.view.add(event)
        self._unseen += events
        self.read_time = time.monotonic() - begun

    def poll(self) -> list[Event]:
        """Return the events that no earlier call has returned."""
        self.refresh()
        events, self._unseen = self._unseen, []
        return events

    @property
    def state(self) -> RunState:
        """The current state, or how the run ended."""
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
        """Ask the run's engine; if it is not installed, only events report the end of the run."""
        control = run_control(self.record.options.engine)
        return control is None or control.is_alive(self)

    def stop(self, force: bool = False) -> None:
        """Stop the run: ranks are interrupted, then killed if they do not react.

        Rank 0 has five minutes to save the trained state.

        Args:
            force: kill all ranks at once; no results are written back.  A later call without
                ``force`` does not revoke it.
        """
        requested = request_stop(self.folder, force)
        if (control := run_control(self.record.options.engine)) is not None:
            control.stop(self, force, requested)

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether a stop was requested; the run may continue for a while."""
        return (self.folder / STOP_FILE).exists()

    def wait(self, timeout: float | None = None) -> RunState:
        """Block until the run is over, or until ``timeout`` seconds have passed.

        Returns:
            The state: how the run ended; starting or running after a timeout.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.over and (deadline is None or time.monotonic() < deadline):
            time.sleep(0.05)
        return self.state

    def rank_name(self, rank: int) -> str:
        """Return ``Rank 3 of 4``, and with several machines ``Rank 3 of 4 on node2``."""
        host = self.view.ranks[rank].host
        return f"Rank {rank} of {self.record.world_size}{f' on {host}' if host else ''}"

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
    def shards(self) -> ShardTable:
        """Which rank stores which layer's parameters, between two steps; empty under ``ddp``."""
        self.refresh()
        return shard_table(self.record, self.view)

    @property
    def profile(self) -> ProfileTable:
        """What each rank spent the time of profiled steps on; empty without ``--profile``."""
        self.refresh()
        return profile_table(self.folder, self.view)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The complete checkpoints, oldest first; see ``--checkpoint-every``.

        Damaged ones are left out, with a warning.
        """
        found = find_checkpoints(self)
        for error in found.damaged:
            warnings.warn(str(error), stacklevel=2)
        return found.whole

    def checkpoint(self, number: int = -1) -> Checkpoint:
        """Return a checkpoint by its place among ``checkpoints``; by default the newest.

        Raises:
            CheckpointError: it has some, and all of them are damaged.
            OptionError: the run has none there.
            OwnershipError: another user may have written it.
        """
        checkpoints = self.checkpoints
        try:
            found = checkpoints[number]
        except IndexError:
            if not checkpoints and (damaged := find_checkpoints(self).damaged):
                raise damaged[-1] from None
            what = f"Run {self.id} has {format_count(len(checkpoints), 'checkpoint')}"
            raise OptionError(format_message(what, instead="--checkpoint-every 10m")) from None
        found.require_own()
        return found

    @property
    def duration(self) -> float:
        """Seconds from the request to the end, to now, or to the last event of a lost run."""
        state = self.state
        now = time.time() if state in ACTIVE_STATES else self.view.last_time
        return max(now - self.record.created, 0.0)

    @property
    def to_collect(self) -> bool:
        """Whether the kernel that launched the run is alive and has not collected its results."""
        kernel = self.record.kernel.pid, self.record.kernel.create_time
        return not (self.folder / COLLECTED_FILE).exists() and process_is_alive(*kernel)

    @property
    def has_uncollected_files(self) -> bool:
        """Whether no kernel has collected the results, and the files for it are still there."""
        bundle = self.record.storage.bundle
        is_collected = (self.folder / COLLECTED_FILE).exists()
        return not is_collected and bool(bundle) and Path(bundle).exists()

    @property
    def has_launcher(self) -> bool:
        """Whether the process that supervises the ranks is alive, on this machine."""
        launcher = self.view.launcher
        return launcher is not None and process_is_alive(launcher.pid, launcher.create_time)

    def delete(self) -> None:
        """Remove the folder of a run that is over.

        Raises:
            OptionError: the run is active, or something of it is still needed.
        """
        check_deletable(self)
        shutil.rmtree(self.folder)

    def __repr__(self) -> str:
        """Return id, state, strategy, number of ranks, duration and folder."""
        return (
            f"<Run {self.id}: {self.state}, {self.record.options.strategy} on "
            f"{self.record.world_size} rank(s), {self.duration:.1f} s, folder={str(self.folder)!r}>"
        )
