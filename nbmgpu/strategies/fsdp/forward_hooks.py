"""FSDP2's hooks around a forward pass, with the same behaviour in all versions of torch.

Torch 2.11 and 2.12 do not cast the inputs and outputs of a module that activation checkpointing
recomputes, 2.11 does not find output tensors in dataclasses, and neither has a method that ends a
failed forward pass.  What is here uses only names that all of these versions have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.utils import _apply_to_tensors


def pre_forward(state: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Run the pre-forward hook of an ``FSDPState``; return the arguments of ``forward``."""
    (module,) = state._modules
    args, kwargs = state._pre_forward(module, args, kwargs)
    dtype = state._mp_policy.param_dtype
    return _cast(args, dtype), _cast(kwargs, dtype)


def post_forward(state: Any, args: Any, output: Any) -> Any:
    """Run the post-forward hook of an ``FSDPState``; return what ``forward`` returns.

    Hooks are set on the tensors of ``output`` in the containers that ``_apply_to_tensors`` knows,
    also in dataclasses.
    """
    (module,) = state._modules
    tensors: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    # FSDP2 warns of views: an in-place change would remove its hook.
    output = _apply_to_tensors(_copy_view, output)
    _apply_to_tensors(collect, output)
    hooked = _cast(state._post_forward(module, args, tensors), state._mp_policy.output_dtype)
    by_id = {id(before): after for before, after in zip(tensors, hooked, strict=True)}
    return _apply_to_tensors(lambda tensor: by_id[id(tensor)], output)


def end_failed_forward(root: Any) -> None:
    """Reshard all units of a root ``FSDPState`` after an exception in its forward pass."""
    root._comm_ctx.post_forward_order.clear()
    for state in root._state_ctx.all_states:
        state._training_state = TrainingState.IDLE
        group = state._fsdp_param_group
        if group is not None:
            group.wait_for_unshard()  # an all-gather that nobody has waited for
            group._to_sharded()
            group._post_forward_indices.clear()
            group._training_state = TrainingState.IDLE
    root._state_ctx.iter_forward_root = None
    root._state_ctx.post_backward_final_callback_queued = False


def _copy_view(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.requires_grad and tensor._base is not None else tensor


def _cast(container: Any, dtype: torch.dtype | None) -> Any:
    """Cast the floating-point tensors of ``container``; others are returned as they are."""
    if dtype is None:
        return container
    return _apply_to_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, container)
