"""A run that this kernel launches, with the resources that it holds until the run is over."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbmgpu.engines.base import RunStorage
from nbmgpu.errors import LaunchError
from nbmgpu.runs.curve import Curve
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import KERNEL, Ended, Event, Metrics, Notice
from nbmgpu.runs.folder import COLLECTED_FILE
from nbmgpu.runs.run import Run
from nbmgpu.runs.undo_log import undo
from nbmgpu.runs.view import QUEUED
from nbmgpu.serialization import device_memory
from nbmgpu.serialization.storage import Storage

if TYPE_CHECKING:
    from nbmgpu.engines.base import Engine, RunHandle
    from nbmgpu.runs.record import RunRecord
    from nbmgpu.serialization import Bundle
    from nbmgpu.serialization.device_memory import FreedMemory
    from nbmgpu.serialization.stored_bundle import StoredBundle

KILL_TIMEOUT = 30.0
"""Seconds in which ranks that are killed end: milliseconds, unless their machines are busy."""

POINTS = 10_000
"""Maximum points in one event."""


class LaunchedRun:
    """A run, its storage, the kernel's events and the handle of the engine.

    Attributes:
        run: the run.
    """

    def __init__(self, run: Run, engine: Engine, storage: RunStorage) -> None:
        """Hold ``storage`` for ``run``; ``start`` launches it."""
        self.run = run
        self._engine = engine
        self._storage: RunStorage | None = storage
        self._events: EventWriter | None = None
        self._handle: RunHandle | None = None
        self._status = ""
        self._freed: FreedMemory | None = None

    @classmethod
    def create(
        cls, record: RunRecord, source: str, engine: Engine, storage: RunStorage
    ) -> LaunchedRun:
        """Create the run folder; release ``storage`` if that fails.

        Raises:
            LaunchError: the folder cannot be written.
        """
        try:
            return cls(Run.create(record, source), engine, storage)
        except BaseException:
            engine.release(storage, in_use=False)
            raise

    @classmethod
    def of(cls, run: Run, engine: Engine) -> LaunchedRun:
        """Return a run that another process has launched, in files as storage."""
        paths = run.record.storage
        storage = RunStorage(Storage(paths.bundle), tuple(map(Storage, paths.results)))
        return cls(run, engine, storage)

    def start(
        self,
        bundle: Bundle | StoredBundle,
        notices: Mapping[str, str],
        modules: Iterable[str],
        held: Run | None = None,
    ) -> None:
        """Launch the ranks, and write the bundle that they wait for.

        Args:
            bundle: what the ranks receive.
            notices: texts by topic; empty ones are not emitted.
            modules: what the ranks of the next run will import.
            held: the last run of ranks that are held, and that run this one; None for new ranks.

        Raises:
            LaunchError: there is no space for the bundle, or the engine cannot start ranks.
        """
        assert self._storage is not None
        self._events = EventWriter(self.run.events_path("kernel"), KERNEL)
        for topic, text in notices.items():
            if text:
                self.notice(topic, text)
        try:
            if held is None:
                self._handle = self._engine.launch(self.run)
            else:
                self._handle = self._engine.hand_on(held, self.run)
            # Meanwhile ranks join their process group.
            bundle.write(self._storage.bundle, self.run.id)
            self._engine.send_bundle(self.run)
            self._engine.preload(modules)
        except LaunchError as error:
            self._emit(Ended, ending="failed", detail=str(error))
            raise
        except BaseException:  # otherwise ranks would wait for the bundle forever
            self.abandon()
            raise

    def free_device_memory(self, bundle: Bundle) -> None:
        """Free the notebook's memory of devices that is in ``bundle``, until the run is over."""
        self._freed = bundle.free_device_memory()

    def restore_device_memory(self) -> None:
        """Bring back what was freed, if anything.

        Raises:
            LaunchError: a device has no memory for it.
        """
        freed, self._freed = self._freed, None
        if freed is None:
            return
        try:
            freed.restore()
        except LaunchError as error:  # an exception of the cell may take precedence
            self.notice("gpu-memory", str(error))
            raise

    def continue_curves(self, curves: Mapping[str, Curve]) -> None:
        """Begin the run's curves, by metric, with those of the run that it resumes."""
        for name, curve in curves.items():
            steps, values = (array.tolist() for array in curve.arrays())
            weights = [curve.weights[step] for step in steps]
            for first in range(0, len(steps), POINTS):
                part = slice(first, first + POINTS)
                points = {"steps": steps[part], "values": values[part], "weights": weights[part]}
                self._emit(Metrics, name=name, **points)

    @property
    def over(self) -> bool:
        """Whether every rank has ended, or none will ever start."""
        if self._handle is not None and not self._has_started:
            error = self._handle.error()
            if error and not self._has_started:
                self._emit(Ended, ending="failed", detail=error)
        return self.run.over

    @property
    def _has_started(self) -> bool:
        """Whether there is a launcher, or was, or will be none."""
        self.run.refresh()
        return self.run.view.launcher is not None or self.run.view.ended is not None

    def sync(self) -> None:
        """Let the engine copy new events and logs to this machine; say what the run waits for."""
        self._engine.sync(self.run)
        if self._handle is not None and self.run.view.launcher is None:
            status = self._handle.status()
            if status and status != self._status:
                self._status = status
                self.notice(QUEUED, status)

    def notice(self, topic: str, text: str) -> None:
        """Emit a notice about the run."""
        self._emit(Notice, topic=topic, text=text)

    def abandon(self) -> None:
        """Kill the ranks of a run that cannot be monitored any more, and release its storage."""
        try:
            if not self.run.over:
                self.run.stop(force=True)
                self.run.wait(timeout=5)
        finally:
            self.release()

    def discard(self) -> None:
        """Kill the ranks of a run whose results are not wanted, and remove all that it wrote.

        Raises:
            OSError: a file that it has changed cannot be restored.
        """
        try:
            self.run.stop(force=True)
            self.run.wait(timeout=KILL_TIMEOUT)
            if self.run.over:
                undo(self.run.folder)
        finally:
            self.release(reusable=False)  # rank 0 may have written its results into the bundle
            shutil.rmtree(self.run.folder, ignore_errors=True)

    def release(self, reusable: bool = True) -> None:
        """Release the storage, mark the run as collected and close its events.

        Raises:
            LaunchError: see ``restore_device_memory``.
        """
        try:
            self.restore_device_memory()
        finally:
            if self._storage is not None:
                storage, self._storage = self._storage, None
                in_use = not self.run.over  # by ranks that did not end
                reusable &= not device_memory.waiting  # whose bytes may be in this storage
                self._engine.release(storage, in_use=in_use or not reusable)
            with suppress(OSError):  # the disk is full, or the folder was removed
                (self.run.folder / COLLECTED_FILE).touch()
            if self._events is not None:
                self._events.close()

    def _emit(self, kind: type[Event], **fields: Any) -> None:
        if self._events is not None:
            self._events.emit(kind, **fields)


def began(launched: LaunchedRun | None) -> float | None:
    """Return when the first of the runs began that end with ``launched``, one after the other.

    Returns:
        Seconds since the epoch; None if there is none.
    """
    if launched is None:
        return None
    record = launched.run.record
    return record.options.repeated or record.created
