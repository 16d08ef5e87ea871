"""Lets all ranks write a checkpoint at the same iteration, which is asked for at any time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from nbmgpu.runs.folder import CHECKPOINT_REQUEST_FILE

PASSED_ON = "nbmgpu/checkpoint/{}"
"""Key of the N-th request in the store."""


class IterationAgreement:
    """Agrees on an iteration that no rank has begun yet, without holding up any of them.

    A rank that sees a request all-reduces the number of its iteration (MAX), asynchronously, and
    waits for the result in its next iteration.  A checkpoint is due one iteration after the
    largest: there all ranks know the result.  None can wait for one that waits for it in a
    collective of the cell, because it has taken part in all collectives of earlier iterations, and
    the other looks for the request at each iteration.

    This needs requests that each rank sees as soon as another one has seen them.  Files of one
    machine are so; those of a network are not.  There, rank 0 alone reads the file, and passes
    requests on through the store of the process group.
    """

    def __init__(
        self, folder: Path, group: ProcessGroup | None, rank: int = 0, nodes: int = 1
    ) -> None:
        """Read requests from the run's ``folder``.

        Args:
            folder: the run folder.
            group: has all ranks, with gloo.
            rank: of this process.
            nodes: number of machines.
        """
        self._path = folder / CHECKPOINT_REQUEST_FILE
        self._group = group
        self._store: Any = dist.distributed_c10d._get_default_store() if nodes > 1 else None
        self._reads_file = rank == 0 or nodes == 1
        self._passed_on = 0
        self._seen = 0
        self._latest: torch.Tensor | None = None
        self._work: Any = None
        self._due: int | None = None

    def request(self) -> None:
        """Ask all ranks for a checkpoint, unless one has been asked for."""
        if self._work is None and self._due is None:
            with self._path.open("a") as file:
                file.write(".")

    def is_due(self, iteration: int) -> bool:
        """Return whether all ranks write a checkpoint from this iteration on.

        Args:
            iteration: number of iterations that have begun; each is asked about once.
        """
        if self._due is None and self._work is not None:
            self._work.wait()
            assert self._latest is not None
            self._due, self._work = int(self._latest.item()) + 1, None
        elif self._due is None and self._is_requested():
            self._latest = torch.tensor(iteration)
            self._work = dist.all_reduce(
                self._latest, dist.ReduceOp.MAX, group=self._group, async_op=True
            )
        return self._due is not None and iteration >= self._due

    @property
    def is_pending(self) -> bool:
        """Whether a checkpoint has been asked for and is not written yet, as this rank knows."""
        return self._work is not None or self._due is not None

    def done(self) -> None:
        """Note that the checkpoint has been written."""
        self._due = None

    def _is_requested(self) -> bool:
        if self._store is None:
            return self._is_in_file()
        if self._reads_file and self._is_in_file():
            self._store.set(PASSED_ON.format(self._passed_on), b"1")
        if not self._store.check([PASSED_ON.format(self._passed_on)]):
            return False
        self._passed_on += 1
        return True

    def _is_in_file(self) -> bool:
        try:
            size = self._path.stat().st_size
        except OSError:
            return False
        requested, self._seen = size > self._seen, max(size, self._seen)
        return requested
