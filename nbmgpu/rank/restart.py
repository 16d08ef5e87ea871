"""Ends a rank early for the cell to start again with whole batches: see ``--exact auto``.

The cell starts again from the bundle, as if nothing had happened.  So nothing may have left the
ranks but what can be undone: files may be written, no process started and no connection made.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from nbmgpu.errors import OptionError, RankError, StrategyError
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import Restart
from nbmgpu.runs.failure import LOST_CONNECTION, LOST_PEER
from nbmgpu.runs.number_topics import REASONS, SAME_WORK
from nbmgpu.runs.preallocation import DISK_FULL
from nbmgpu.runs.undo_log import UndoLog

from .effects import FileChange, watch_effects
from .files.paths import resolve_parent
from .peers import EXIT_CODE, Peers
from .reporting.shard_topics import OTHER_NUMBERS
from .training.compilation import has_compiled_modules

if TYPE_CHECKING:
    from .reference.step_file import StepWriter

WITHIN = 60.0
"""Seconds after which a cell does not start again: it would lose more than it gains."""

WITHIN_OF_ERROR = 10.0
"""The same after an exception, which most often is one that the cell has on one device, too."""

LEAST_PATIENCE = 5.0
"""Seconds for which a rank that has failed waits at least for one device to be as far."""

SAME_ERRORS = (MemoryError, torch.OutOfMemoryError, OptionError, StrategyError)
"""Exceptions that whole batches do not prevent: they need more memory, or are about options."""


class RestartRequest:
    """Asks for the restart at the first notice about numbers, if the cell has had no effects."""

    def __init__(self, events: EventWriter, folder: Path, peers: Peers) -> None:
        """Watch the cell from now on.

        Args:
            events: of this rank.
            folder: the run folder, whose files are not the cell's.
            peers: the other ranks.
        """
        self._events = events
        self._began = time.monotonic()
        self._process = os.getpid()
        self._undo_log = UndoLog(folder)
        self._peers = peers
        self._has_effects = False
        self._given_up = ""
        watch_effects(folder, self._record, lambda _, predicate: self._has_effect(predicate))

    @property
    def possible(self) -> bool:
        """Whether the cell can still start again."""
        return self._is_rank and not self._obstacle

    def give_up(self, predicate: str) -> None:
        """Start no cell again from now on; ``predicate`` says why the cell cannot."""
        self._given_up = predicate

    @property
    def _is_rank(self) -> bool:
        return os.getpid() == self._process  # and no worker of a loader

    @property
    def _obstacle(self) -> str:
        """Why the cell cannot start again, as a predicate; empty if it can."""
        return self._given_up or obstacle(self._undo_log, self._seconds)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def consider(self, topic: str, line: int = 0) -> str:
        """End this rank if a notice of ``topic`` is a reason to start again, and it is possible.

        Args:
            topic: of the notice.
            line: the line of the cell that it is about; 0 if it is about none.

        Returns:
            Why it is not possible, as a sentence; empty for any other topic.
        """
        if topic not in OTHER_NUMBERS or not self._is_rank:
            return ""
        if not (obstacle := self._obstacle):
            self._exit(REASONS[topic] + (f" (line {line})" if line else ""))
        return f"The cell does not start again by itself, as it {obstacle}."

    def consider_same_work(self) -> None:
        """End this rank if possible, as every rank does all the work."""
        if self.possible:
            self._exit(SAME_WORK)

    def consider_error(self, error: BaseException, steps: StepWriter | None) -> None:
        """End this rank if the cell may have failed because it had a shard of a batch.

        It may have the size of a batch written out, or end a loop by what is in a shard.

        Args:
            error: what the cell has raised.
            steps: knows the reference, if there is one, which may raise the same.
        """
        is_full = isinstance(error, OSError) and error.errno in DISK_FULL
        is_of_cell = isinstance(error, Exception) and not isinstance(error, SAME_ERRORS)
        if is_of_cell and not is_full and self._seconds < WITHIN_OF_ERROR and self.possible:
            if re.search(LOST_PEER, str(error)) and self._peers.have_failed():
                return
            failure = describe_failure(error)
            patience = max(self._seconds, LEAST_PATIENCE)  # to start again takes as long
            if steps is None or not steps.fails_on_one_device(failure, patience):
                self._exit(failure)

    def _exit(self, reason: str) -> None:
        with suppress(OSError):  # the disk is full: the kernel would not see why
            self._events.emit(Restart, reason=reason)
            os._exit(EXIT_CODE)  # the kernel ends the others, which may wait for this one

    def _record(self, change: FileChange) -> None:
        """Record what is at a path that is about to change."""
        if self._has_effects or self._seconds > WITHIN:
            return
        path, event = change.path, change.event
        is_folder = os.path.isdir(path)
        if event == "os.mkdir" and is_folder:  # an error, as a rule ignored
            return
        full = os.path.realpath(path) if event == "open" else resolve_parent(path)
        is_undone = not change.is_relative and not (event == "os.rename" and is_folder)
        if not (is_undone and self._undo_log.record(full)):
            self._has_effect(change.predicate)

    def _has_effect(self, predicate: str) -> None:
        if not self._has_effects:
            self._has_effects = True
            self._undo_log.add_obstacle(predicate)


def obstacle(undo_log: UndoLog, seconds: float) -> str:
    """Return why a cell cannot start again, as a predicate; empty if it can.

    Args:
        undo_log: of what it has changed.
        seconds: how long it has run.
    """
    if seconds >= WITHIN:
        return f"has run for more than {WITHIN:.0f} s"
    compiled = "has a compiled model, of whose calls ranks cannot have a part each"
    return undo_log.obstacle or (compiled if has_compiled_modules() else "")


def describe_failure(error: BaseException) -> str:
    """Return what a cell does that raises ``error``, as a predicate."""
    if isinstance(error, RankError) or re.search(LOST_CONNECTION, str(error)):
        return "takes other steps on one rank than on another"
    line = f"{type(error).__name__}: {error}".partition("\n")[0]
    return f"raises {line.rstrip('.')}"
