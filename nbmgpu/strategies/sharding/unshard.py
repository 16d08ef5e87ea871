"""The end of a sharded cell: all objects of the notebook become full and plain again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from nbmgpu.errors import LOST_SHARDS

from .full_tensor_view import FullTensorView
from .param_state import ParamState, make_plain
from .parameter_storage import FreedStorage
from .tensor_shard import TensorShard

MAX_COMPARED_ELEMENTS = 10_000
"""Elements up to which other ranks keep full tensors too, to be compared with rank 0's."""

UNFINISHED = (
    "The cell ended early while its model was sharded over ranks: parameters and optimizer states "
    "are those from before the cell."
)


def unshard_all(
    param_states: Sequence[ParamState],
    optimizers: list[Optimizer],
    freed_storage: FreedStorage,
    rank: int,
    on_host: bool = False,
) -> None:
    """Gather parameters, gradients and optimizer states; collective.

    Afterwards rank 0 has all full tensors, and the other ranks only small ones.

    Args:
        param_states: the sharded parameters, in the same order on all ranks.
        optimizers: their optimizers.
        freed_storage: the memory of the parameters.
        rank: this rank.
        on_host: whether parameters that the cell has moved to a GPU come back on the host, as they
            are larger than the GPU's memory, with their gradients and states.
    """
    if rank == 0:
        freed_storage.restore()
    for param_state in param_states:
        param_state.restore_registration()
        grad_view: Any = param_state.grad_view()
        full = param_state.shard.full_tensor()
        grad = None if grad_view is None else grad_view._shard.full_tensor()
        keeps = rank == 0 or param_state.shape.numel() <= MAX_COMPARED_ELEMENTS
        if on_host and param_state.was_moved:
            full, grad = full.cpu(), None if grad is None else grad.cpu()
        _restore(param_state, full if keeps else None, grad if keeps else None)
        if grad_view is not None and param_state.parameter.grad is not None:
            grad_view._shard.unsharded = param_state.parameter.grad
    for optimizer in optimizers:
        for state in list(optimizer.state.values()):
            if isinstance(state, dict):
                for name, value in list(state.items()):
                    if isinstance(value, FullTensorView):
                        state[name] = _unshard_state(value, rank, on_host)


def _unshard_state(view: Any, rank: int, on_host: bool) -> Tensor:
    shard = view._shard
    full: Tensor = shard.full_tensor()
    full = full.cpu() if on_host else full
    if shard.original is not None and shard.unsharded is None:
        full = shard.original.copy_(full)
    elif rank and shard.shape.numel() > MAX_COMPARED_ELEMENTS:
        full = torch.empty(0, dtype=full.dtype)
    shard.unsharded = full
    return full


def _restore(param_state: ParamState, full: Tensor | None, grad: Tensor | None) -> None:
    """Restore the cell's parameter: its class and its memory."""
    parameter: Any = param_state.parameter
    original = param_state.original_data
    with torch.no_grad():
        if full is None:
            data = torch.empty(0, dtype=param_state.dtype, device=param_state.device)
        elif (
            original is not None
            and original.untyped_storage().nbytes()
            and not param_state.was_moved
        ):
            data = original.copy_(full)
        else:
            data = full
    make_plain(param_state, data)
    parameter.grad = grad
    param_state.shard.unsharded = data
    param_state.set_local_grad(None)


def restore_after_failure(
    param_states: Sequence[ParamState],
    optimizers: list[Optimizer],
    freed_storage: FreedStorage,
    notice: Callable[[str, str], None],
) -> None:
    """Restore parameters and states from before the cell, without collectives."""
    TensorShard.can_gather = False
    freed_storage.restore(lost=True)
    for param_state in param_states:
        param_state.restore_registration()
        data = param_state.original_data
        assert data is not None
        make_plain(param_state, data)
        param_state.shard.unsharded = data
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            if isinstance(state, dict):
                views = {k: v for k, v in state.items() if isinstance(v, FullTensorView)}
                state.update({k: v._shard.original for k, v in views.items()})
                if any(v._shard.original is None for v in views.values()):
                    del optimizer.state[parameter]
    notice(LOST_SHARDS, UNFINISHED)
