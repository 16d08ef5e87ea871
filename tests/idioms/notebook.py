"""Namespaces of notebooks, and cells that run in them in this process."""

from __future__ import annotations

import itertools
import linecache
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

PRELUDE = """
import copy, itertools, math, random
from collections import namedtuple
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    BatchSampler, ConcatDataset, DataLoader, Dataset, IterableDataset, Sampler, Subset,
    SubsetRandomSampler, TensorDataset, WeightedRandomSampler, random_split,
)

class Net(nn.Module):
    def __init__(self, features=8, classes=4):
        super().__init__()
        self.body = nn.Linear(features, 12)
        self.head = nn.Linear(12, classes)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))

X = torch.randn(44, 8)
Y = torch.randint(0, 4, (44,))
dataset = TensorDataset(X, Y)
loader = DataLoader(dataset, batch_size=8)
val_loader = DataLoader(TensorDataset(X.flip(0) * 0.9, Y.flip(0)), batch_size=9)
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
losses = []
"""
"""What every idiom starts from.  44 samples by 8: six batches, the last one of 4."""

DEVICE = os.environ.get("NBMGPU_TEST_DEVICE", "cpu")
"""Where the tensors of notebooks are: with ``cuda`` on GPU 0, which all ranks share; with
``standin`` on a device without hardware, of which each rank has one (``tests/standin``)."""

_numbers = itertools.count()


def on_ranks(ranks: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return ``options`` of ``nbmgpu.run`` with the devices for this number of ranks.

    Unless they say so, no cell starts again: most tests are about ranks with shards.
    """
    options = {"exact": "never"} | options
    if DEVICE == "cpu":
        return {"gpus": ranks, "cpu": True} | options
    if DEVICE == "standin":
        return {"gpus": ranks} | options
    in_one_process = options.get("strategy") in ("dp", "mp")
    return {"gpus": 1 if in_one_process else (0,) * ranks} | options


def notebook(setup: str = "", seed: int = 0, prelude: str = PRELUDE) -> dict[str, Any]:
    """Return the namespace of a notebook that has run ``prelude`` and ``setup`` after seeding."""
    _reset_accelerate()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    torch.backends.cudnn.allow_tf32 = False  # ten bits of precision, by default
    with torch.device(DEVICE):
        for source in (prelude, setup):
            skipping_unless_cpu(execute, source, namespace)
    return namespace


def execute(source: str, namespace: dict[str, Any]) -> None:
    """Run ``source`` as ipykernel does: ``linecache`` has its lines, though there is no file."""
    filename = f"<cell-{next(_numbers)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), namespace)


@contextmanager
def working_directory(folder: Path | None) -> Iterator[None]:
    """Make ``folder`` the current directory, if one is given; create it if it is missing."""
    before = os.getcwd()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def execute_alone(source: str, namespace: dict[str, Any]) -> None:
    """Run a cell on one device."""
    skipping_unless_cpu(execute, source, namespace)


def skipping_unless_cpu(function: Callable[..., None], *args: Any) -> None:
    """Call ``function``; on a GPU, skip the test if the source is for CPU tensors only."""
    try:
        function(*args)
    except (RuntimeError, TypeError) as error:
        if DEVICE == "cpu" or not any(
            word in str(error) for word in ("device", "cuda", "CUDA", "CPU")
        ):
            raise
        pytest.skip(f"a cell for CPU tensors: {error}")


def _reset_accelerate() -> None:
    """Reset accelerate's state, which belongs to the process and not to a notebook."""
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
