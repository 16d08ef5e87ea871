"""Detects random draws of samples in the worker processes of a DataLoader.

Each worker of each rank has its own seed, so samples draw other random numbers than on one device.
Only the worker process can observe that they do.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, get_worker_info

from nbmgpu.rank.rng.draw_detector import DrawDetector
from nbmgpu.rank.rng.generators import generators_in


class WorkerDrawDetector:
    """A ``collate_fn`` for workers: returns each batch, and whether samples have drawn so far.

    Use it together with ``init_worker`` as ``worker_init_fn``.  Both reach a worker in one pickle
    where workers are not forked.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        """Wrap the ``collate_fn`` and ``worker_init_fn`` of ``loader``."""
        self._collate, self._init = loader.collate_fn, loader.worker_init_fn
        self._draws: DrawDetector | None = None
        self._batches = 0

    def init_worker(self, worker_id: int) -> None:
        """Run the user's ``worker_init_fn``; seeds that it sets do not count as draws."""
        if self._init is not None:
            self._init(worker_id)
        dataset = getattr(get_worker_info(), "dataset", None)
        self._draws = DrawDetector(generators_in(getattr(dataset, "__dict__", {}), excluded=()))

    def __call__(self, samples: Any) -> tuple[Any, bool]:
        """Collate, and check for draws at the worker's 1st, 2nd, 4th, 8th ... batch."""
        batch = self._collate(samples)
        self._batches += 1
        draws = None if self._batches & (self._batches - 1) else self._draws
        return batch, draws is not None and (draws.torch_drew or draws.host_drew)
