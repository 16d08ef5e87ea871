"""Parameters of a block while it runs on a slice: the ranks' gradients add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from nbmgpu.strategies.collectives import all_reduce
from nbmgpu.strategies.rnn_weights import update_rnn_weights
from nbmgpu.strategies.sharding.full_tensor_view import ShardedParameter

Replicate = Callable[..., Sequence[Tensor]]
"""Takes replicated tensors; returns them for use in a block, in whose backward pass their gradients
add up over the ranks."""


@contextmanager
def replicated_parameters(module: nn.Module, replicate: Replicate) -> Iterator[None]:
    """Let the modules in ``module`` compute with parameters whose gradients are summed.

    The gradients of a block are summed in one message.  Parameters that are split over the ranks
    have the gradients of their parts.
    """
    places = [
        (each, name)
        for each in module.modules()
        for name, parameter in each._parameters.items()
        if parameter is not None
        and not isinstance(parameter, ShardedParameter)
        and parameter.requires_grad
    ]
    with replicated_at(places, replicate):
        yield


@contextmanager
def replicated_at(places: Sequence[tuple[nn.Module, str]], replicate: Replicate) -> Iterator[None]:
    """Let modules compute with parameters whose gradients are summed.

    Args:
        places: the modules, and the names of their parameters.
        replicate: sums the gradients.
    """
    if not places or not torch.is_grad_enabled():
        yield
        return
    before: list[Any] = [module._parameters[name] for module, name in places]
    parameters = list(dict.fromkeys(before))
    used = replicate(*parameters)
    replaced = dict(zip(parameters, used, strict=True))
    modules = list(dict.fromkeys(module for module, _ in places))
    for (module, name), parameter in zip(places, before, strict=True):
        module._parameters[name] = replaced[parameter]
    update_rnn_weights(modules)
    try:
        yield
    finally:
        for (module, name), parameter in zip(places, before, strict=True):
            module._parameters[name] = parameter
        update_rnn_weights(modules)


def replicate_parameters(group: ProcessGroup, *tensors: Tensor) -> Sequence[Tensor]:
    """Return replicated tensors whose gradients are summed over ``group``, in one message."""
    return ReplicateParameters.apply(group, *tensors)  # type: ignore[no-any-return, no-untyped-call]


class ReplicateParameters(torch.autograd.Function):
    """Keeps replicated tensors, and sums their gradients over the ranks.

    Each rank sends the gradients of all of them, and how many ranks use each: a slice need not use
    what another one does.
    """

    @staticmethod
    def forward(ctx: Any, group: ProcessGroup, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return views of the tensors."""
        ctx.group = group
        ctx.kinds = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Sum the gradients; those that no rank has stay None."""
        present = [
            torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
            for grad, (shape, dtype, device) in zip(grads, ctx.kinds, strict=True)
        ]
        users = present[0].new_ones(len(grads))
        for unused in (i for i, grad in enumerate(grads) if grad is None):
            users[unused] = 0
        *totals, users = SumAll.apply(ctx.group, *present, users)  # type: ignore[no-untyped-call]
        # A rank that uses all parameters does not wait for a GPU to read the numbers.
        return None, *(
            total if grad is not None or bool(users[i]) else None
            for i, (grad, total) in enumerate(zip(grads, totals, strict=True))
        )


class SumAll(torch.autograd.Function):
    """Sums tensors over the ranks, those of each dtype in one message; keeps their gradients."""

    @staticmethod
    def forward(ctx: Any, group: ProcessGroup, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the all-reduce."""
        ctx.group = group
        ctx.set_materialize_grads(False)
        totals: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            members = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
            flat = torch.cat([tensors[i].flatten() for i in members])
            all_reduce(flat, group).wait()
            parts = flat.split([tensors[i].numel() for i in members])
            totals |= {i: part.view(tensors[i].shape) for i, part in zip(members, parts)}  # noqa: B905
        return tuple(totals[i] for i in range(len(tensors)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Keep the gradients of gradients, from which each rank computes for its slice."""
        present = [grad for grad in grads if grad is not None]
        used = iter(ReplicateParameters.apply(ctx.group, *present))  # type: ignore[no-untyped-call]
        return None, *(None if grad is None else next(used) for grad in grads)
