"""Whether samples draw random numbers where a loader's worker processes load them.

Each worker of each rank has a seed of its own, so that what samples draw is another draw than one
device's.  Nobody but the worker sees that they do.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, get_worker_info

from nbmgpu.rank.rng.streams import DrawDetector, generators_in


class DrawsInWorker:
    """The ``collate_fn`` of a worker: gives each batch, and whether samples have drawn so far.

    It goes to the workers together with ``begin``, in one pickle where they are not forked.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        """Collate as ``loader`` does."""
        self._collate, self._init = loader.collate_fn, loader.worker_init_fn
        self._since: DrawDetector | None = None
        self._batches = 0

    def begin(self, worker: int) -> None:
        """Take the place of ``worker_init_fn``: seeds that it sets are no draws."""
        if self._init is not None:
            self._init(worker)
        dataset = getattr(get_worker_info(), "dataset", None)
        self._since = DrawDetector(generators_in(getattr(dataset, "__dict__", {}), but=()))

    def __call__(self, samples: Any) -> tuple[Any, bool]:
        """Collate, and look: at the 1st, 2nd, 4th, 8th ... batch of the worker."""
        batch = self._collate(samples)
        self._batches += 1
        since = None if self._batches & (self._batches - 1) else self._since
        return batch, since is not None and (since.torch_drew or since.host_drew)
