"""An interruption on which all ranks act at the same step.

Where a model is spread over ranks, its weights can only come home if all ranks stop at the
same point: one that has left its collective leaves the others with half a parameter.  So
the first SIGINT is only noted.  With every backward pass ranks tell each other whether they
have noted one, and all of them raise KeyboardInterrupt at the next.  A step that takes
too long is interrupted where it is.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from nbmgpu.launch.ending import HOLDING_FILE

PATIENCE = 1.0
"""Seconds to wait for the next step; the launcher's third SIGINT comes later than that."""


class Interruption:
    """What this rank has heard, and what all ranks have agreed on."""

    def __init__(self, folder: Path) -> None:
        """Let the launcher know through ``folder`` that a moment is needed."""
        self._folder = folder
        self._asked: float | None = None
        self._answer: torch.Tensor | None = None
        self._work: Any = None
        self.together = False

    def install(self) -> None:
        """Listen to SIGINT from now on."""
        signal.signal(signal.SIGINT, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
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
