"""Kernels for tests: one shared kernel, and new ones for tests that kill or break theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kernels import Notebook, notebook_in

TRAINING = """
import os, signal, sys, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
import nbmgpu
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(20, 4), torch.randint(0, 2, (20,))), batch_size=8)
"""


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A kernel with the extension loaded."""
    with notebook_in(tmp_path_factory.mktemp("kernel")) as notebook:
        yield notebook.load()


@pytest.fixture
def notebook(shared: Notebook) -> Notebook:
    """The shared kernel, with a new model and no active run."""
    shared.run(TRAINING)
    shared.wait_for_ranks_to_exit(10)
    return shared


@pytest.fixture
def new_notebook(tmp_path: Path) -> Iterator[Callable[..., Notebook]]:
    """Start kernels that a test may kill or break."""
    with ExitStack() as stack:

        def make(name: str = "kernel", **environment: str) -> Notebook:
            notebook = stack.enter_context(notebook_in(tmp_path / name, **environment))
            notebook.run(f"%load_ext nbmgpu\n{TRAINING}")
            return notebook

        yield make
