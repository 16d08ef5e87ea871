"""What engines for several machines have in common."""

from __future__ import annotations

import signal
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nbmgpu.engines.base import Engine, RunStorage
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import LAUNCHER, Ended, Event

from . import FORCE_STOP, STOP

if TYPE_CHECKING:
    from nbmgpu.runs.run import Run


class MultiNodeEngine(Engine):
    """An engine whose runs have a head, which outlives the kernel, and files as storage."""

    outlives_kernel = True
    crosses_network = True

    NOT_STARTED: ClassVar[str]
    """Why a run has ended that was stopped before it had a head."""

    @abstractmethod
    def cancel(self, run: Run, sig: signal.Signals | None = None) -> None:
        """Signal the head of the run; without ``sig``, end one that waits for its nodes."""

    def allocate(self, folder: Path, nbytes: int, world_size: int) -> RunStorage:
        """Return files in the run folder."""
        return RunStorage.in_files(folder, nbytes, world_size)

    def release(self, storage: RunStorage, in_use: bool) -> None:
        """Remove the files."""
        storage.close()

    def stop(self, run: Run, force: bool, requested: bool) -> None:
        """Signal the head, also where it cannot read the request; end a run that has none yet."""
        run.refresh()
        if run.view.launcher is not None:
            self.cancel(run, FORCE_STOP if force else STOP)
            return
        self.cancel(run)
        self.emit(run, Ended, ending="stopped", detail=self.NOT_STARTED)

    @staticmethod
    def emit(run: Run, kind: type[Event], **fields: str) -> None:
        """Emit an event in place of the head of the run, which has ended or never started."""
        events = EventWriter(run.events_path("launcher"), LAUNCHER)
        events.emit(kind, **fields)
        events.close()
