"""Training idioms, and the comparison of one device with ranks.

An idiom is a cell as somebody would write it for one device, and the cells before it.
It is run twice from the same start: by plain ``exec`` in this process, and by
``nbmgpu.run`` on ranks.  Then everything that the notebook holds is compared.
"""

from __future__ import annotations

import dataclasses
import itertools
import linecache
import random
import textwrap
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

import nbmgpu
from nbmgpu.environment import random_state
from nbmgpu.runs.events import EventTail, Progress

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

TRAIN = """
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
"""
"""The loop of all loops, for idioms that differ in what comes before it."""

SHARES = frozenset({"x", "y", "batch", "out", "xb", "yb", "pred", "i"})
"""Names for what a step makes of its batch: on ranks, what rank 0 made of its share."""


@dataclass(frozen=True)
class Idiom:
    """A cell and the cells before it, with what is known of its run on ranks.

    ``shares`` are names that hold a rank's share, besides ``SHARES``.  ``split`` tells
    whether a loader is to be split.  ``notices`` are the topics that must be given.
    ``curve`` tells whether the losses gathered are the run's curve, one for one.
    """

    name: str
    cell: str
    setup: str = ""
    shares: frozenset[str] = frozenset()
    split: bool = True
    notices: frozenset[str] = frozenset()
    rtol: float = 1e-5
    atol: float = 1e-6
    ranks: tuple[int, ...] = (2,)
    curve: bool = True

    def __str__(self) -> str:
        return self.name


def idiom(
    name: str,
    cell: str = TRAIN,
    *,
    setup: str = "",
    shares: str = "",
    notices: str = "",
    **more: Any,
) -> Idiom:
    """Make an idiom from indented sources and words separated by spaces."""
    sets = {"shares": frozenset(shares.split()), "notices": frozenset(notices.split())}
    return Idiom(name, textwrap.dedent(cell), textwrap.dedent(setup), **sets, **more)


def notebook(setup: str, seed: int = 0) -> dict[str, Any]:
    """Return the namespace of a notebook that has run ``PRELUDE`` and ``setup``."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    execute(PRELUDE, namespace)
    execute(setup, namespace)
    return namespace


_numbers = itertools.count()


def execute(source: str, namespace: dict[str, Any]) -> None:
    """Run ``source`` as ipykernel does: its lines can be found, though there is no file."""
    filename = f"<numerics-{next(_numbers)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), namespace)


@dataclass
class Comparison:
    """How ranks differ from one device: the largest error, and all that is too large."""

    run: nbmgpu.Run
    alone: dict[str, Any]
    ranks: dict[str, Any]
    error: float = 0.0
    worst: str = ""
    wrong: list[str] = dataclasses.field(default_factory=list)

    @property
    def notices(self) -> set[str]:
        """The topics of the run's notices, but for what every run on CPUs says."""
        return set(self.run.view.notices) - {"devices"}

    def split(self) -> bool:
        """Whether rank 1 had a share of some loader."""
        events = EventTail(self.run.folder / "events" / "rank-1.jsonl").read()
        return any(isinstance(e, Progress) and e.key == "loader" for e in events)


def compare(idiom: Idiom, ranks: int = 2, **options: Any) -> Comparison:
    """Run ``idiom`` on one device and on ``ranks``, and compare all that they leave."""
    alone = notebook(idiom.setup)
    execute(idiom.cell, alone)
    random_alone = random_state.capture()

    shared = notebook(idiom.setup)
    own = dict(shared)
    run = nbmgpu.run(idiom.cell, shared, gpus=ranks, cpu=True, **options)
    random_ranks = random_state.capture()

    result = Comparison(run, alone, shared)
    names = [n for n in alone if not n.startswith("__") and n not in SHARES | idiom.shares]
    for name in names:
        if name in shared:
            _compare(result, idiom, name, alone[name], shared[name], set())
        elif not hasattr(alone[name], "__next__"):
            result.wrong.append(f"{name}: not in the notebook after the run")
    kept = (nn.Module, torch.optim.Optimizer, DataLoader)
    bound = {n for n in names if isinstance(own.get(n), kept) and alone[n] is not None}
    result.wrong += [
        f"{name}: another object than before"
        for name in bound
        if name in shared and shared[name] is not own[name] and not _rebinds(idiom.cell, name)
    ]
    for kind in ("python", "numpy", "torch"):
        a, b = getattr(random_alone, kind), getattr(random_ranks, kind)
        _compare(result, idiom, f"random state of {kind}", a, b, set())
    _compare_curve(result, idiom)
    return result


def _rebinds(cell: str, name: str) -> bool:
    return any(line.strip().startswith((f"{name} =", f"{name}, ")) for line in cell.splitlines())


def _compare_curve(result: Comparison, idiom: Idiom) -> None:
    """Compare the curve of the run with the losses that the cell gathered, one a step."""
    losses = result.alone["losses"]
    curve = result.run.view.curves.get("loss")
    if idiom.curve and curve and len(curve) == len(losses) and isinstance(losses[0], float):
        values = curve.arrays()[1].tolist()
        _compare(result, idiom, "curve of the loss", losses, values, set())


def _compare(result: Comparison, idiom: Idiom, path: str, a: Any, b: Any, seen: set[int]) -> None:
    """Compare ``a`` of one device with ``b`` of ranks, and their parts."""
    if id(a) in seen:
        return
    seen.add(id(a))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        a, b = _array(a), _array(b)
    if type(a).__name__ != type(b).__name__:
        result.wrong.append(f"{path}: {type(a)} on one device, {type(b)} on ranks")
    elif isinstance(a, np.ndarray | float | int) and not isinstance(a, bool):
        _compare_numbers(result, idiom, path, np.asarray(a), np.asarray(b))
    elif isinstance(a, str | bool | bytes | None):
        if a != b:
            result.wrong.append(f"{path}: {a!r} on one device, {b!r} on ranks")
    elif isinstance(a, list | tuple):
        if len(a) != len(b):
            result.wrong.append(f"{path}: {len(a)} items on one device, {len(b)} on ranks")
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            _compare(result, idiom, f"{path}[{i}]", x, y, seen)
    elif isinstance(a, dict):
        if list(a) != list(b):
            result.wrong.append(f"{path}: keys {list(a)} on one device, {list(b)} on ranks")
        for key in a.keys() & b.keys():
            _compare(result, idiom, f"{path}[{key!r}]", a[key], b[key], seen)
    else:
        mine, theirs = _parts(a), _parts(b)
        for key in mine:
            if key in theirs:
                _compare(result, idiom, f"{path}.{key}", mine[key], theirs[key], seen)
            else:
                result.wrong.append(f"{path}: no {key} on ranks")


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    tensor = tensor.detach()
    return (tensor.to_dense() if tensor.is_sparse else tensor).double().numpy()


def _compare_numbers(result: Comparison, idiom: Idiom, path: str, a: Any, b: Any) -> None:
    if a.dtype.kind not in "biuf":
        return
    if a.shape != b.shape:
        result.wrong.append(f"{path}: shape {a.shape} on one device, {b.shape} on ranks")
        return
    if not np.allclose(a, b, idiom.rtol, idiom.atol, equal_nan=True):
        where = f"{a} on one device, {b} on ranks" if a.size == 1 else f"{_gap(a, b):.1e} apart"
        result.wrong.append(f"{path}: {where}")
    if (gap := _gap(a, b)) > result.error:
        result.error, result.worst = gap, path


def _gap(a: Any, b: Any) -> float:
    gaps = np.abs(np.nan_to_num(a.astype(float)) - np.nan_to_num(b.astype(float)))
    return float(gaps.max()) if gaps.size else 0.0


OPAQUE = (type, ModuleType, FunctionType, BuiltinFunctionType, DataLoader, Dataset, Sampler)


def _parts(value: Any) -> dict[str, Any]:
    """Return what makes up an object, as far as it can be compared."""
    if isinstance(value, nn.Module):
        parameters = dict(value.named_parameters())
        return {
            "state_dict()": dict(value.state_dict()),
            "grads": {name: p.grad for name, p in parameters.items() if p.grad is not None},
            "requires_grad": {name: p.requires_grad for name, p in parameters.items()},
            "training": value.training,
        }
    if isinstance(value, torch.optim.Optimizer | torch.amp.GradScaler):
        return {"state_dict()": value.state_dict()}
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        plain = (int, float, str, bool, list, dict, type(None))
        state = value.state_dict()
        return {"state_dict()": {k: v for k, v in state.items() if isinstance(v, plain)}}
    if isinstance(value, OPAQUE) or type(value).__module__ != "__main__":
        return {}
    return {key: part for key, part in vars(value).items() if not isinstance(part, OPAQUE)}
