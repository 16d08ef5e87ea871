"""Attributes and functions that full tensor views handle themselves: gradients, data, hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from nbmgpu.errors import StrategyError, format_message

from .full_tensor_view import FullTensorView, ShardedParameter, full_tensor_of, full_view_of


def run_on_placeholder(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``func`` on the view's own tensor, which has the right metadata and no values."""
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _get_grad(view: Any) -> Any:
    if not isinstance(view, ShardedParameter):
        return None
    return view._param_state.grad_view()


def _set_grad(view: Any, grad: Any) -> None:
    if isinstance(view, ShardedParameter):
        view._param_state.set_grad(grad)


def _detach(view: Any) -> Any:
    """Return ``view.detach()``, which shares its memory."""
    with torch._C.DisableTorchFunctionSubclass():
        like = None if not view._views else torch.empty_strided(
            view.shape, view.stride(), dtype=view.dtype, device="meta"
        )  # fmt: skip
    alias = full_view_of(view._shard, like)
    alias._views = view._views
    return alias


def _set_data(view: Any, data: Any) -> None:
    if tuple(data.shape) != tuple(view.shape) or data.dtype != view.dtype:
        raise StrategyError(
            format_message(
                f"A parameter of shape {tuple(view.shape)} and {view.dtype} cannot become one of "
                f"{tuple(data.shape)} and {data.dtype} while it is sharded",
                instead="changing the model before the optimizer is made, or --strategy ddp",
            )
        )
    view._shard.copy_from(full_tensor_of(data) if not view._views else data)


def _get_requires_grad(view: Any) -> bool:
    if view._views:
        return view._leaf is not None and bool(view._leaf.requires_grad)
    getter = Tensor.requires_grad.__get__  # type: ignore[attr-defined]
    return bool(run_on_placeholder(getter, (view,), {}))


def _set_requires_grad(view: Any, requires_grad: bool = True) -> Any:
    setter = Tensor.requires_grad.__set__  # type: ignore[attr-defined]
    run_on_placeholder(setter, (view, requires_grad), {})
    if isinstance(view, ShardedParameter):
        view._param_state.set_requires_grad(requires_grad)
    return view


def _refuse_hook(view: Any, *args: Any, **kwargs: Any) -> Any:
    raise StrategyError(
        format_message(
            "A hook on a sharded parameter would see the gradient of one rank's shard of the "
            "batch, before it is reduced",
            instead="a hook that is registered before the cell, or --strategy ddp",
        )
    )


def _autograd_grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.autograd.grad`` with respect to the tensors that parameters have in the graph."""
    wanted = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    names = ("grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused")
    options: dict[str, Any] = dict(zip(names, args, strict=False)) | kwargs
    allow = options.pop("allow_unused", None)
    materialize = options.pop("materialize_grads", False)
    groups = [graph_tensors(t) for t in wanted]
    flat = [t for group in groups for t in group]
    found = iter(torch.autograd.grad(outputs, flat, allow_unused=True, **options) if flat else ())
    results: list[Any] = []
    for tensor, group in zip(wanted, groups, strict=True):
        grads = [_full_graph_grad(tensor, g) for g in (next(found) for _ in group) if g is not None]
        if not grads and not allow and not materialize:
            what = "One of the differentiated Tensors appears to not have been used in the graph."
            raise RuntimeError(what + " Set allow_unused=True if this is the desired behavior.")
        total = sum(grads[1:], grads[0]) if grads else None
        results.append(torch.zeros(tensor.shape) if total is None and materialize else total)
    return tuple(results)


def graph_tensors(tensor: Any) -> list[Tensor]:
    """Return the full tensors that represent a sharded parameter in autograd graphs.

    Any other tensor represents itself.
    """
    return tensor._param_state.graph_tensors() if _is_sharded(tensor) else [tensor]


def _full_graph_grad(tensor: Any, grad: Tensor) -> Tensor:
    return tensor._param_state.full_graph_grad(grad) if _is_sharded(tensor) else grad


def _is_sharded(tensor: Any) -> bool:
    return isinstance(tensor, ShardedParameter)


def _unscale(grads: Any, found_inf: Tensor, inv_scale: Tensor) -> None:
    """Unscale gradients for a GradScaler; ``found_inf`` is that of all ranks."""
    views = [leaf for leaf in tree_leaves(grads) if isinstance(leaf, FullTensorView)]
    for view in views:
        assert not view._views
    parts = [g._shard.local if isinstance(g, FullTensorView) else g for g in grads]
    torch._amp_foreach_non_finite_check_and_unscale_(parts, found_inf, inv_scale)
    dist.all_reduce(found_inf, dist.ReduceOp.MAX)


HANDLERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("get", "grad"): _get_grad,
    ("set", "grad"): _set_grad,
    ("delete", "grad"): lambda view: _set_grad(view, None),
    ("get", "data"): _detach,
    ("set", "data"): _set_data,
    ("call", "detach"): _detach,
    ("get", "requires_grad"): _get_requires_grad,
    ("set", "requires_grad"): _set_requires_grad,
    ("call", "requires_grad_"): _set_requires_grad,
    ("call", "register_hook"): _refuse_hook,
    ("call", "register_post_accumulate_grad_hook"): _refuse_hook,
    ("call", "grad"): _autograd_grad,
    ("call", "_amp_foreach_non_finite_check_and_unscale_"): _unscale,
    ("call", "__deepcopy__"): FullTensorView.__deepcopy__,
    ("call", "__reduce_ex__"): FullTensorView.__reduce_ex__,
    ("call", "__repr__"): lambda view, **options: FullTensorView.__repr__(view),
}
"""Handlers by kind (``get``, ``set``, ``delete``, ``call``) and name of the function."""
