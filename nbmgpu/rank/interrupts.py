"""What a rank does when it is interrupted.

The cell gets a KeyboardInterrupt.  While it handles that, in an ``except``, a ``finally`` or a
``with``, it may be saving what it has: it is not interrupted again for as long as the launcher
waits for it.  Nor is it while Python makes shared memory, which nobody would remove if the
interrupt came before it is registered; the next one is not far.

Where a model is spread over ranks, its weights can only come home if all ranks stop at the
same point: one that has left its collective leaves the others with half a parameter.  So
the first SIGINT is only noted.  With every backward pass ranks tell each other whether they
have noted one, and all of them raise KeyboardInterrupt at the next.  A step that takes
too long is interrupted where it is.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from nbmgpu.runs.run import HANDLING_FILE, HOLDING_FILE, INTERRUPT_GRACE

PATIENCE = 1.0
"""Seconds to wait for the next step; the launcher's third SIGINT comes later than that."""

MAKERS = ("multiprocessing.shared_memory", "multiprocessing.resource_tracker")
"""Modules that make shared memory, and have it removed."""


class Interrupts:
    """SIGINT as the cell sees it."""

    def __init__(self, folder: Path) -> None:
        """Let the launcher know through ``folder`` that a moment is needed."""
        self._folder = folder
        self._handled: float | None = None

    def install(self) -> None:
        """Listen to SIGINT from now on, and to SIGTERM, which says the same."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)
        # A Pool ends its workers by SIGTERM, and they are to end, without a word.
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))

    def _hear(self, number: int, frame: FrameType | None) -> None:
        once = number == signal.SIGTERM  # torchrun's, whose other ranks have ended
        if once or not (self._is_handled() or _makes_shared_memory(frame)):
            raise KeyboardInterrupt

    def _is_handled(self) -> bool:
        """Tell whether the last one is being handled, and has been for no longer than may be."""
        error = sys.exc_info()[1]
        while error is not None and not isinstance(error, KeyboardInterrupt):
            error = error.__context__
        if error is None:
            return False
        now = time.monotonic()
        self._handled = self._handled or now
        with suppress(OSError):
            (self._folder / HANDLING_FILE).touch()
        return now - self._handled < INTERRUPT_GRACE


def _makes_shared_memory(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") in MAKERS:
            return True
        frame = frame.f_back
    return False


class AgreedInterrupts(Interrupts):
    """SIGINT where a model is spread over ranks: all of them stop at the step they agree on."""

    def __init__(self, folder: Path) -> None:
        """Let the launcher know through ``folder`` that a moment is needed."""
        super().__init__(folder)
        self._asked: float | None = None
        self._answer: torch.Tensor | None = None
        self._work: Any = None
        self.together = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            raise KeyboardInterrupt
        if self._is_handled() or _makes_shared_memory(frame):
            return
        steps = self._work is not None  # else nothing will come by at which to stop
        now = time.monotonic()
        if not steps or (self._asked is not None and now - self._asked > PATIENCE):
            raise KeyboardInterrupt
        if self._asked is None:
            self._asked = now
            (self._folder / HOLDING_FILE).touch()

    def agree(self) -> None:
        """Tell the others, and hear what they said a step ago; collective.

        Raises:
            KeyboardInterrupt: on all ranks, when one of them was interrupted.
        """
        if self._work is not None:
            self._work.wait()
            assert self._answer is not None
            if self._answer.item():
                self.together = True
                raise KeyboardInterrupt
        # On the host: reading it waits for no GPU.
        self._answer = torch.tensor(int(self._asked is not None), dtype=torch.int32)
        self._work = dist.all_reduce(self._answer, dist.ReduceOp.MAX, async_op=True)
