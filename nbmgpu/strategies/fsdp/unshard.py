"""The end of a sharded cell: every object of the notebook is whole and plain again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .parameter_storage import Lent
from .row_shards import Shard
from .sharded_tensors import Face
from .wrapper import Slot

SMALL = 10_000
"""Elements up to which other ranks keep a whole parameter too, for comparison."""

UNFINISHED = (
    "The cell failed while its model was sharded over ranks: parameters and optimizer states "
    "are those from before the cell."
)


def bring_home(slots: list[Slot], optimizers: list[Optimizer], lent: Lent, rank: int) -> None:
    """Gather parameters, gradients and states; collective, the same order on all ranks.

    Rank 0 has all whole afterwards.  The others have what is small, and nothing of the rest.
    """
    if rank == 0:
        lent.give_back()
    for slot in slots:
        slot.group.refresh()
        grad_face: Any = slot.grad_face()
        whole = slot.shard.whole()
        grad = None if grad_face is None else grad_face._shard.whole()
        keeps = rank == 0 or slot.shape.numel() <= SMALL
        _restore(slot, whole if keeps else None, grad if keeps else None)
        if grad_face is not None and slot.original.grad is not None:
            grad_face._shard.home = slot.original.grad
    for optimizer in optimizers:
        for state in list(optimizer.state.values()):
            if isinstance(state, dict):
                for name, value in list(state.items()):
                    if isinstance(value, Face):
                        state[name] = _whole_state(value, rank)


def _whole_state(face: Any, rank: int) -> Tensor:
    shard = face._shard
    whole: Tensor = shard.whole()
    if shard.origin is not None and shard.home is None:
        whole = shard.origin.copy_(whole)
    elif rank and shard.shape.numel() > SMALL:
        whole = torch.empty(0, dtype=whole.dtype)
    shard.home = whole
    return whole


def _restore(slot: Slot, whole: Tensor | None, grad: Tensor | None) -> None:
    """Make the cell's parameter what it was: its class, its memory, its place in modules."""
    parameter: Any = slot.original
    slot.inner.show(False)
    with torch.no_grad():
        if whole is None:
            home = torch.empty(0, dtype=slot.dtype, device=slot.device)
        elif slot.home is not None and slot.home.untyped_storage().nbytes():
            home = slot.home.copy_(whole)
        else:
            home = whole
    requires_grad = parameter.requires_grad
    become_plain(slot, home, requires_grad)
    parameter.grad = grad
    slot.shard.home = home
    slot.sharded().grad = None


def become_plain(slot: Slot, home: Tensor, requires_grad: bool) -> None:
    """Give the parameter its class and ``home`` for memory."""
    parameter: Any = slot.original
    del parameter._shard, parameter._slot
    parameter.__class__ = nn.Parameter
    parameter.data = home
    parameter.requires_grad_(requires_grad)


def put_back_unfinished(
    slots: list[Slot], optimizers: list[Optimizer], lent: Lent, say: Callable[[str, str], None]
) -> None:
    """Make parameters plain without talking to other ranks, which may be gone."""
    Shard.together = False
    lent.give_back(lost=True)
    for slot in slots:
        requires_grad = slot.original.requires_grad
        slot.inner.show(False)
        home = slot.home
        assert home is not None
        become_plain(slot, home, requires_grad)
        slot.shard.home = home
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            if isinstance(state, dict):
                faces = {k: v for k, v in state.items() if isinstance(v, Face)}
                state.update({k: v._shard.origin for k, v in faces.items()})
                if any(v._shard.origin is None for v in faces.values()):
                    del optimizer.state[parameter]
    say("unfinished", UNFINISHED)
