"""Gradients and optimizer states of an engine, in parts over the ranks.

Each part is a slice of DeepSpeed's flat partitions.  Between steps they keep the life
that ``.grad`` and ``optimizer.state`` have on one device: gradients stay and add up
until the cell removes them, states belong to parameters and not to partitions.
"""

from __future__ import annotations

import collections
import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from .parameter_proxies import SpreadState

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from .engine_wrapper import Home


class Gradients:
    """What ``.grad`` of an engine's parameters would be on one device."""

    def __init__(self, home: Home) -> None:
        """Begin without any gradient."""
        self.home = home
        self.layout = home.layout
        self.flat = [torch.zeros_like(m, requires_grad=False) for m in self.layout.masters]
        self.present: set[int] = set()
        self._shown: dict[int, tuple[nn.Parameter, Tensor]] = {}

    def part(self, parameter: nn.Parameter) -> Tensor | None:
        """Return this rank's part of a gradient, in place; None if it has no part."""
        place = self.layout.slices[id(parameter)]
        return None if place is None else place.of(self.flat[place.partition])

    def add(self, parameters: Iterable[nn.Parameter], sources: list[Tensor], scale: float) -> None:
        """Add to the gradients of ``parameters`` their parts of ``sources``, over ``scale``."""
        self.settle()
        self._shown.clear()
        for parameter in parameters:
            part, place = self.part(parameter), self.layout.slices[id(parameter)]
            if part is not None and place is not None:
                if id(parameter) not in self.present:
                    part.zero_()
                part.add_(place.of(sources[place.partition]), alpha=1 / scale)
            self.present.add(id(parameter))

    def read(self, parameter: nn.Parameter) -> Tensor | None:
        """Return the whole gradient, as the cell sees it; collective unless just read."""
        if id(parameter) not in self.present:
            return None
        if self.home.shows_parts:
            self._shown.pop(id(parameter), None)
            part = self.part(parameter)
            return torch.zeros(0) if part is None else part
        if id(parameter) not in self._shown:
            with self.home.inside():
                like = self.home.outer_dtype(parameter)
                whole = self.layout.join(parameter, self.part(parameter), torch.float32).to(like)
            self._shown[id(parameter)] = (parameter, whole)
        return self._shown[id(parameter)][1]

    def write(self, parameter: nn.Parameter, value: Tensor | None) -> None:
        """Let ``value``, the same on all ranks, be the gradient."""
        self._shown.pop(id(parameter), None)
        if value is None:
            self.present.discard(id(parameter))
            return
        self.present.add(id(parameter))
        self._shown[id(parameter)] = (parameter, value)

    def settle(self) -> None:
        """Take over gradients that the cell was shown or has set: it may have changed them.

        Not every operation in place leaves a trace in the version of a tensor.
        """
        for key, (parameter, whole) in self._shown.items():
            part, place = self.part(parameter), self.layout.slices[key]
            if part is not None and place is not None:
                part.copy_(place.cut(whole.detach()))

    def powers(self, parameters: Iterable[nn.Parameter], kind: float) -> Tensor:
        """Return the sum of |g| ** kind over ``parameters``, or the largest |g|; collective."""
        self.settle()
        device = self.layout.models()[0].device
        chosen = [p for p in parameters if id(p) in self.present]
        parts = [part for p in chosen if (part := self.part(p)) is not None]
        norms = [torch.linalg.vector_norm(part, kind).to(device) for part in parts]
        total = torch.stack(norms) if norms else torch.zeros(1, device=device)
        if kind == float("inf"):
            total = total.max()
            dist.all_reduce(total, dist.ReduceOp.MAX)
        else:
            total = total.pow(kind).sum()
            dist.all_reduce(total)
        return total

    def multiply(self, parameters: Iterable[nn.Parameter], factor: Tensor) -> None:
        """Multiply the gradients of ``parameters``."""
        self._shown.clear()
        for parameter in parameters:
            part = self.part(parameter)
            if part is not None and id(parameter) in self.present:
                part.mul_(factor.to(part.device))


class States:
    """The states of a unit's optimizers, keyed by slices of parameters.

    ``pieces`` are what the optimizers step: views of the partitions, one per parameter,
    so that each keeps its own count of steps and one without gradient is left alone.
    """

    def __init__(self, home: Home) -> None:
        """Take in the states that the optimizers have."""
        self.home = home
        self.layout = home.layout
        self.pieces: dict[int, nn.Parameter] = {}
        for parameter in self.layout.parameters:
            place = self.layout.slices[id(parameter)]
            if place is not None:
                flat = self.layout.masters[place.partition].detach()
                self.pieces[id(parameter)] = nn.Parameter(place.of(flat))
        self.of: list[dict[Any, Any]] = []
        self._order: list[dict[int, None]] = [{} for _ in home.optimizers]
        self._taken: list[dict[Any, Any]] = [{} for _ in home.optimizers]
        for index, optimizer in enumerate(home.optimizers):
            self.of.append(collections.defaultdict(dict))
            self.take_in(index, optimizer)

    def take_in(self, index: int, optimizer: Optimizer) -> None:
        """Spread ``optimizer.state``, keyed by whole parameters, if it is not spread already."""
        whole = optimizer.state
        if isinstance(whole, SpreadState) and not whole.whole:
            return
        spread: dict[Any, Any] = collections.defaultdict(dict)
        for key, state in dict(whole).items():
            if id(key) not in self.layout.slices:
                spread[key] = state
            elif id(key) in self.pieces:
                spread[self.pieces[id(key)]] = self._cut(key, state)
        self.of[index] = spread
        self._order[index] = dict.fromkeys(map(id, dict(whole)))
        # On a GPU they would take the memory that is to be saved.
        self._taken[index] = {id(k): v for k, v in dict(whole).items() if k.device.type == "cpu"}
        optimizer.state = SpreadState(self.home, index)

    def _cut(self, parameter: Tensor, state: dict[str, Any]) -> dict[str, Any]:
        place = self.layout.slices[id(parameter)]
        piece = self.pieces[id(parameter)]
        assert place is not None
        shape = self.layout.shapes[id(parameter)]
        cut: dict[str, Any] = {}
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == shape:
                alone = value.dim() == 0 and name == "step"
                part = value.detach().reshape(-1) if alone else place.cut(value.detach())
                device = value.device if alone else piece.device
                cut[name] = (part.view(()) if alone else part).to(device, copy=True)
            else:
                cut[name] = copy.deepcopy(value)
        return cut

    def note_order(self, index: int, optimizer: Optimizer, present: set[int]) -> None:
        """Note which parameters an optimizer meets, in the order of its state on one device."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in present:
                    self._order[index].setdefault(id(parameter))

    def at_home(self, index: int) -> dict[Any, dict[str, Any]]:
        """Return the whole state, in the tensors it came in: others may hold them, too."""
        whole = self.collect(index)
        for parameter, state in whole.items():
            before = self._taken[index].get(id(parameter), {})
            for name, value in state.items():
                memory = before.get(name)
                if not isinstance(memory, torch.Tensor) or not isinstance(value, torch.Tensor):
                    continue
                if (memory.shape, memory.dtype) == (value.shape, value.dtype):
                    state[name] = memory.detach().copy_(value)
        return whole

    def collect(self, index: int) -> dict[Any, dict[str, Any]]:
        """Return the whole state of an optimizer, keyed by whole parameters; collective."""
        spread = self.of[index]
        mine = {}
        order = list(self.layout.parameters)
        for number, parameter in enumerate(order):
            piece = self.pieces.get(id(parameter))
            if piece is not None and piece in spread:
                mine[number] = {n: _kind(v, piece) for n, v in spread[piece].items()}
        everywhere: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everywhere, mine)
        whole: dict[Any, dict[str, Any]] = {}
        with self.home.inside():
            for number, parameter in enumerate(order):
                kinds = next((k[number] for k in everywhere if number in k), None)
                if kinds is None:
                    continue
                piece = self.pieces.get(id(parameter))
                ours = spread.get(piece, {}) if piece is not None else {}
                whole[parameter] = {
                    name: self.layout.join(parameter, ours.get(name), value)
                    if isinstance(value, torch.dtype) else value
                    for name, value in kinds.items()
                }  # fmt: skip
        pieces = {id(piece) for piece in self.pieces.values()}
        whole |= {key: state for key, state in spread.items() if id(key) not in pieces}
        place = {key: i for i, key in enumerate(self._order[index])}
        return dict(sorted(whole.items(), key=lambda item: place.get(id(item[0]), len(place))))


def _kind(value: Any, piece: nn.Parameter) -> Any:
    """Return the dtype of a state that lies like its parameter; any other value as it is."""
    lies = isinstance(value, torch.Tensor) and value.shape == piece.shape
    return value.dtype if lies else value
