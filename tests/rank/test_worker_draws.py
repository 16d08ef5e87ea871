"""Workers detect whether samples draw random numbers."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from nbmgpu.rank.data.worker_draws import WorkerDrawDetector

KINDS = {
    "nothing": lambda self: 0.0,
    "torch": lambda self: torch.rand(()).item(),
    "python": lambda self: random.random(),
    "numpy": lambda self: np.random.rand(),
    "its own": lambda self: self.rng.random(),
}


class Samples(Dataset[float]):
    def __init__(self, kind: str) -> None:
        self.kind, self.rng = kind, np.random.default_rng(0)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> float:
        return KINDS[self.kind](self) if i >= 6 else 0.0


def detected(loader: DataLoader[Any]) -> list[bool]:
    draws = WorkerDrawDetector(loader)
    loader.collate_fn, loader.worker_init_fn = draws, draws.init_worker
    return [drew for _, drew in loader]


@pytest.mark.parametrize("kind", KINDS)
def test_draws_of_samples_are_detected_at_the_next_check(kind: str) -> None:
    loader = DataLoader(Samples(kind), batch_size=2, num_workers=1)
    assert detected(loader) == [False, False, False, kind != "nothing", False, False]


def test_seeding_in_worker_init_fn_is_no_draw() -> None:
    loader = DataLoader(Samples("nothing"), 4, num_workers=1, worker_init_fn=np.random.seed)
    assert detected(loader) == [False, False, False]


def test_both_callables_share_one_detector_after_pickling() -> None:
    draws = WorkerDrawDetector(DataLoader([1.0], collate_fn=None))
    collate, init = pickle.loads(pickle.dumps((draws, draws.init_worker)))
    assert init.__self__ is collate
