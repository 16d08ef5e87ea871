"""Signal handlers of a rank: SIGINT and SIGTERM raise KeyboardInterrupt in the cell.

While the cell handles a KeyboardInterrupt, in an ``except``, a ``finally`` or a ``with``, it may be
saving its state.  It is not interrupted again for as long as the launcher waits for it.  Nor is it
interrupted while Python allocates shared memory, which would leak if the interrupt came before it
is registered for removal; the launcher soon sends another signal.  Nor is the shell interrupted
once the cell has ended: what comes there would end the rank without its results.

A sharded model can only be gathered if all ranks stop at the same step: a rank that leaves a
collective leaves the others with part of a parameter.  There the first SIGINT is only recorded.
With every backward pass the ranks tell each other whether they have recorded one, and all of them
raise KeyboardInterrupt at the next pass.  A step that takes much longer than the last one is
interrupted where it is.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from nbmgpu.runs.folder import HANDLING_FILE, HOLDING_FILE, INTERRUPT_GRACE, INTERRUPTED_FILE
from nbmgpu.runs.stacks import CELL_FILE_MARK
from nbmgpu.strategies import collectives
from nbmgpu.system.signals import leave_to_head

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)

STEP_TIMEOUT = 1.0
"""Seconds to wait at least for the next step; the launcher's third SIGINT comes later than that."""

STEPS = 3
"""How many steps to wait: all ranks stop a step after the one in which the first is signalled."""

SHARED_MEMORY_MODULES = ("multiprocessing.shared_memory", "multiprocessing.resource_tracker")
"""Modules that allocate shared memory, and register it for removal."""

RUNS_LOOP = "IPython.core.async_helpers", "__call__"
"""Module and name of the function that runs an event loop, which may be another than asyncio's."""

SHELL_MODULE = f"{__package__}.shell"
"""Its method ``run`` runs the cell."""


class InterruptHandler:
    """Raises KeyboardInterrupt in the cell, unless it handles one already."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Create the handler of a rank; files in the run's ``folder`` ask the launcher to wait."""
        self._folder = folder
        self._is_rank_0 = rank == 0
        self._handled_since: float | None = None

    def install(self) -> None:
        """Handle SIGINT and SIGTERM from now on, unless they are left to the head of the run."""
        for number in INTERRUPTS:
            if signal.getsignal(number) is not leave_to_head:
                signal.signal(number, self._handle)
        # A multiprocessing.Pool ends its workers by SIGTERM, which must end them silently.
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        at_once = number == signal.SIGTERM  # from torchrun, whose other ranks have ended
        if at_once or not (self._is_being_handled() or _allocates_shared_memory(frame)):
            self._interrupt(frame)

    def _interrupt(self, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, unless the cell has not begun or has ended."""
        if self._is_rank_0:
            self._tell(INTERRUPTED_FILE)
        if not _is_beside_cell(frame):
            raise KeyboardInterrupt

    def _tell(self, name: str) -> None:
        with suppress(OSError):  # the disk is full, or the folder was removed
            (self._folder / name).touch()

    def _is_being_handled(self) -> bool:
        """Return whether the cell handles a KeyboardInterrupt, within the time it has for that."""
        error = sys.exc_info()[1]
        while error is not None and not isinstance(error, KeyboardInterrupt):
            error = error.__context__
        if error is None:
            return False
        now = time.monotonic()
        self._handled_since = self._handled_since or now
        self._tell(HANDLING_FILE)
        return now - self._handled_since < INTERRUPT_GRACE


def _allocates_shared_memory(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") in SHARED_MEMORY_MODULES:
            return True
        frame = frame.f_back
    return False


def _is_beside_cell(frame: FrameType | None) -> bool:
    """Return whether IPython runs, before or after the code of the cell."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        waits = module.startswith("asyncio.") or (module, frame.f_code.co_name) == RUNS_LOOP
        if waits or CELL_FILE_MARK in frame.f_code.co_filename:
            return False  # a cell with ``await`` has no frame of its own while it waits
        if module == SHELL_MODULE and frame.f_code.co_name == "run":
            return True
        frame = frame.f_back
    return False


class SynchronizedInterruptHandler(InterruptHandler):
    """Interrupts all ranks at the same step, for models that are sharded over ranks.

    Attributes:
        stopped_together: whether all ranks were interrupted at the same step.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        """Create the handler of a rank; files in the run's ``folder`` ask the launcher to wait."""
        super().__init__(folder, rank)
        self.begin_run(folder)

    def begin_run(self, folder: Path, has_trained: bool = False) -> None:
        """Begin a run in ``folder``, on all ranks: none has received a SIGINT in it.

        Args:
            folder: of the run.
            has_trained: whether there is something to gather already, of an earlier cell.
        """
        self._folder, self._handled_since = folder, None
        self._received_at: float | None = None
        self._step_at: float | None = None
        self._step_seconds = 0.0
        self._previous: Callable[[], bool] | None = None
        self._has_trained = has_trained
        self.stopped_together = False

    @property
    def has_received(self) -> bool:
        """Whether a SIGINT waits for the next step."""
        return self._received_at is not None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self._interrupt(frame)
            return
        if self._is_being_handled() or _allocates_shared_memory(frame):
            return
        now = time.monotonic()
        has_steps = self._previous is not None or self._has_trained  # else nothing is lost
        waited = 0.0 if self._received_at is None else now - self._received_at
        limit = self._step_timeout(now - waited)
        if not has_steps or waited > limit:
            self._interrupt(frame)
            return
        if self._received_at is None:
            self._received_at = now
            self._tell(HOLDING_FILE)
        if limit > STEP_TIMEOUT:
            self._tell(HANDLING_FILE)  # the launcher waits, and repeats the signal

    def _step_timeout(self, received_at: float) -> float:
        """Return how long to wait for the step at which all ranks stop."""
        begun = received_at if self._step_at is None else self._step_at
        seconds = self._step_seconds or received_at - begun
        return min(max(STEP_TIMEOUT, STEPS * seconds), INTERRUPT_GRACE)

    def synchronize(self) -> None:
        """Raise if a rank had received a SIGINT one step ago; tell the others for this step.

        Raises:
            KeyboardInterrupt: on all ranks, after one of them was interrupted.
        """
        if self._previous is not None and self._previous():
            self.stopped_together = True
            raise KeyboardInterrupt
        now = time.monotonic()
        if self._step_at is not None:
            self._step_seconds = now - self._step_at
        self._step_at = now
        self._previous = _send(self._received_at is not None)


def _send(received: bool) -> Callable[[], bool]:
    """Tell all ranks whether this one has received a SIGINT; return what waits for all of them.

    On the CPU, so that no rank waits for a GPU.
    """
    if (memory := collectives.shared_memory()) is not None:
        stream = memory.interrupts
        stream.publish(received)
        position = stream.position
        return lambda: received or any(stream.gather(position))
    flag = torch.tensor(int(received), dtype=torch.int32)
    work: Any = dist.all_reduce(flag, dist.ReduceOp.MAX, async_op=True)

    def any_received() -> bool:
        work.wait()
        return bool(flag.item())

    return any_received


def ignore_interrupts() -> list[Any]:
    """Ignore the signals that interrupt a cell; return their earlier handlers."""
    return [signal.signal(number, signal.SIG_IGN) for number in INTERRUPTS]


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore the signals that interrupt a cell, while an exception is handled that ends it."""
    handlers = ignore_interrupts()
    try:
        yield
    finally:
        for number, handler in zip(INTERRUPTS, handlers, strict=True):
            signal.signal(number, handler)


def report_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Report an exception in a finalizer, except an interrupt: the launcher sends another one."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
