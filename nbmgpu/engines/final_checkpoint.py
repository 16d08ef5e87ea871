"""The checkpoint that a run writes before its ranks are ended, so that it can be resumed there."""

from __future__ import annotations

import time
from contextlib import suppress

from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import Notice
from nbmgpu.runs.folder import CHECKPOINT_REQUEST_FILE
from nbmgpu.runs.run import Run
from nbmgpu.runs.view import STOPPING

LIMIT = 15.0
"""Seconds that ranks have for it: an iteration of the cell's loop, and the writing."""

WRITING = (
    "Before it stops, the run writes a checkpoint, for {limit:.0f} s at most. Stop again ends it "
    "at once."
)
UNWRITTEN = ("no-checkpoints", "checkpoint-failed")
"""Topics of the notices that ranks do not write checkpoints."""


class FinalCheckpoint:
    """Asks the ranks of a run with ``--checkpoint-every`` for one more checkpoint."""

    def __init__(self, run: Run, events: EventWriter) -> None:
        """Ask for nothing yet; ``events`` gets a notice about the request."""
        self._run = run
        self._events = events
        self._before: object = None
        self._deadline: float | None = None

    def request(self) -> None:
        """Ask for it, if all ranks run the cell and can write one."""
        if not self._run.record.options.values.get("checkpoint_every") or not self._can_write():
            return
        with suppress(OSError):  # the disk is full, or the folder was removed
            with (self._run.folder / CHECKPOINT_REQUEST_FILE).open("a") as file:
                file.write(".")
            self._before = self._run.view.checkpoint
            self._deadline = time.monotonic() + LIMIT
            self._events.emit(Notice, topic=STOPPING, text=WRITING.format(limit=LIMIT))

    def give_up(self) -> None:
        """Do not wait for it any longer."""
        self._deadline = None

    def poll(self) -> bool:
        """Read new events; return whether it may still be completed in time."""
        if self._deadline is None:
            return False
        can_write = self._can_write()  # reads the events
        is_written = self._run.view.checkpoint is not self._before
        if is_written or not can_write or time.monotonic() > self._deadline:
            self._deadline = None
        return self._deadline is not None

    def _can_write(self) -> bool:
        self._run.refresh()
        view = self._run.view
        is_running = all(rank.state == "running" for rank in view.ranks)
        return is_running and not any(topic in view.notices for topic in UNWRITTEN)
