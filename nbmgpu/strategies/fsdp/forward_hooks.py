"""FSDP2's hooks around a forward pass, with the same behaviour in all versions of torch.

Torch 2.11 and 2.12 do not cast the inputs and outputs of a module that activation checkpointing
recomputes, 2.11 does not find output tensors in dataclasses, and neither has a method that ends a
failed forward pass.  What is here uses only names that all of these versions have.

``_apply_to_tensors`` has a closure that calls itself, a reference cycle with all that its function
refers to.  So containers of tensors are cleared here: otherwise outputs stay until Python's garbage
collector runs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.utils import _apply_to_tensors
from torch.profiler import record_function

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.sequence.sequence_tensor import SequenceTensor, whole_of

NOTHING_RECORDED = nullcontext()

HOOKS = (
    (FSDPState, "_pre_forward"),
    (FSDPState, "_post_forward"),
    (FSDPState, "_pre_backward"),
    (FSDPState, "_root_post_backward_final_callback"),
    (FSDPParamGroup, "pre_backward"),
    (FSDPParamGroup, "post_backward"),
)


def spare_python_time(patches: PatchStack) -> None:
    """Leave out of FSDP2's hooks what takes time in each call of a unit, and has no effect.

    Names for a profiler are recorded while there is one: each takes 10 us.  And hooks are excluded
    from compilation once, where FSDP2 does so in each call, which takes as long.
    """
    patches.replace(f"{FSDPParamGroup.__module__}.record_function", _record_if_profiled)
    for cls, name in HOOKS:
        hook = getattr(getattr(cls, name), "__wrapped__", None)
        if hook is not None:
            target = f"{cls.__module__}.{cls.__qualname__}.{name}"
            patches.replace(target, torch.compiler.disable(hook))


def _record_if_profiled(name: str) -> AbstractContextManager[Any]:
    is_profiled = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    return record_function(name) if is_profiled else NOTHING_RECORDED


def pre_forward(state: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Run the pre-forward hook of an ``FSDPState``; return the arguments of ``forward``."""
    (module,) = state._modules
    given, slices = _with_slices((args, kwargs))
    args, kwargs = state._pre_forward(module, *slices)
    dtype = state._mp_policy.param_dtype
    hooked: tuple[Any, Any] = _split_again(given, (_cast(args, dtype), _cast(kwargs, dtype)))
    return hooked


def post_forward(state: Any, args: Any, output: Any) -> Any:
    """Run the post-forward hook of an ``FSDPState``; return what ``forward`` returns.

    Hooks are set on the tensors of ``output`` in the containers that ``_apply_to_tensors`` knows,
    also in dataclasses.
    """
    (module,) = state._modules
    output_dtype = state._mp_policy.output_dtype
    # FSDP2 warns of views: an in-place change would remove its hook.
    if type(output) is Tensor:  # most outputs, which take less time so
        return _cast(state._post_forward(module, args, _copy_view(output)), output_dtype)
    given, slices = _with_slices(_apply_to_tensors(_copy_view, output))
    tensors = _tensors(slices)
    hooked = _cast(state._post_forward(module, args, tensors), output_dtype)
    by_id = {id(before): after for before, after in zip(tensors, hooked, strict=True)}
    output = _split_again(given, _apply_to_tensors(lambda tensor: by_id[id(tensor)], slices))
    tensors.clear()
    by_id.clear()
    return output


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


def _with_slices(container: Any) -> tuple[list[Tensor], Any]:
    """Return the tensors of ``container``, and a copy that has the slices of those that are split.

    FSDP2 would gather a split tensor.  If none is split, there are no tensors to return.
    """
    tensors = _tensors(container)
    is_split = any(isinstance(tensor, SequenceTensor) for tensor in tensors)
    tensors.clear()
    if not is_split:
        return [], container
    plain = _apply_to_tensors(lambda t: whole_of(t) if _is_gathered(t) else t, container)
    slices = _apply_to_tensors(lambda t: t.slice() if isinstance(t, SequenceTensor) else t, plain)
    return _tensors(plain), slices


def _split_again(given: list[Tensor], hooked: Any) -> Any:
    """Return ``hooked`` with split tensors in place of slices, in the order of ``given``."""
    if not given:
        return hooked
    remaining = iter(given)

    def split_again(tensor: Tensor) -> Tensor:
        before = next(remaining)
        if not isinstance(before, SequenceTensor):
            return tensor
        is_same = tensor is before.slice()
        return before if is_same else SequenceTensor.make(tensor, before.part_layout)

    result = _apply_to_tensors(split_again, hooked)
    given.clear()
    return result


def _tensors(container: Any) -> list[Tensor]:
    tensors: list[Tensor] = []
    _apply_to_tensors(tensors.append, container)
    return tensors


def _is_gathered(tensor: Tensor) -> bool:
    return isinstance(tensor, SequenceTensor) and tensor.is_gathered


def _copy_view(tensor: Tensor) -> Tensor:
    if isinstance(tensor, SequenceTensor):
        return tensor
    return tensor.clone() if tensor.requires_grad and tensor._base is not None else tensor


def _cast(container: Any, dtype: torch.dtype | None) -> Any:
    """Cast the floating-point tensors of ``container``; others are returned as they are."""
    if dtype is None:
        return container
    return _apply_to_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, container)
