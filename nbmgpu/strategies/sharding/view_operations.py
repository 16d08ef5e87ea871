"""Operations on full tensor views: on local parts if possible, otherwise on gathered tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .full_tensor_view import FullTensorView, ShardedParameter, ViewOp, full_view_of, resolve
from .view_attributes import HANDLERS, run_on_placeholder

ELEMENTWISE = frozenset(
    f"{name}_"
    for name in (
        "add", "sub", "mul", "div", "zero", "fill", "clamp", "clamp_min", "clamp_max", "copy",
        "lerp", "addcmul", "addcdiv", "neg", "sqrt", "abs", "sign", "pow", "nan_to_num",
    )
) | {"__iadd__", "__isub__", "__imul__", "__itruediv__"}  # fmt: skip
FOREACH = frozenset(f"_foreach_{name}" for name in ELEMENTWISE)
"""In-place operations that can run on each rank's part."""

SHAPE_ONLY = frozenset({
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "new_zeros",
    "new_ones", "new_empty", "new_full", "new_tensor",
    "stride", "is_contiguous", "is_set_to", "is_non_overlapping_and_dense",
})  # fmt: skip
"""Operations that need shape, dtype and device, but no values."""

METADATA = frozenset({
    "size", "dim", "numel", "nelement", "ndimension", "element_size", "is_floating_point",
    "is_complex", "is_signed", "get_device", "__len__", "is_inference", "is_pinned", "is_same_size",
    "has_names", "_is_view", "is_conj", "is_neg", "_is_zerotensor", "is_tensor", "is_shared",
    "__hash__", "is_nonzero_static",
})  # fmt: skip
"""Methods that run on the placeholder tensor of the view itself."""

MEMORY = frozenset({"data_ptr", "untyped_storage", "storage", "storage_offset", "_typed_storage"})
"""Methods for direct access to memory."""

Gathered = tuple[Any, Tensor, Tensor, int]
"""A view, its full base tensor, the view of that, and the base's version before the operation."""


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``func``, of whose arguments some are full tensor views."""
    kind, name = _kind_and_name(func)
    handler = HANDLERS.get((kind, name))
    if handler is not None:
        return handler(*args, **kwargs)
    if kind == "get" and name not in ("T", "mT", "H", "mH", "real", "imag"):
        return run_on_placeholder(func, args, kwargs)
    if kind == "call" and name in METADATA:
        return run_on_placeholder(func, args, kwargs)
    if name in MEMORY:
        return _run_on_snapshot(func, *args, **kwargs)
    if name in SHAPE_ONLY:
        return func(*tree_map(_empty_like, args), **tree_map(_empty_like, kwargs))
    if name in ELEMENTWISE or name in FOREACH:
        done, result = _run_on_local_parts(func, args, kwargs)
        if done:
            return result
    return _run_on_full_tensors(func, args, kwargs)


def _kind_and_name(func: Any) -> tuple[str, str]:
    """Return the kind of ``func`` (``get``, ``set``, ``delete`` or ``call``), and its name."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        return name.strip("_"), func.__self__.__name__
    return "call", name


def _empty_like(value: Any) -> Any:
    if not isinstance(value, FullTensorView):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        view: Any = value
        return torch.empty(
            view.shape, dtype=view.dtype, device=view.device, requires_grad=view.requires_grad
        )


def _run_on_snapshot(func: Any, view: Any, *args: Any, **kwargs: Any) -> Any:
    """Run ``func`` on a full copy, which is kept as long as the view."""
    view._snapshot = view._shard.snapshot()
    tensor = view._snapshot
    for view_op in view._views:
        tensor = view_op.apply(tensor)
    return func(tensor, *args, **kwargs)


def _views_in(value: Any) -> Iterator[Any]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, FullTensorView))


def _run_on_local_parts(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool, Any]:
    """Run an elementwise in-place operation on this rank's parts, if all tensors are split alike.

    Returns:
        Whether it has run, and its result.
    """
    leaves = tree_leaves((args, kwargs))
    views = [leaf for leaf in leaves if isinstance(leaf, FullTensorView)]
    plain = [
        x for x in leaves
        if isinstance(x, Tensor) and not isinstance(x, FullTensorView) and x.dim()
    ]  # fmt: skip
    first: Any = args[0] if args else None
    targets = list(first) if isinstance(first, list | tuple) else [first]
    if plain or not all(isinstance(t, FullTensorView) for t in targets):
        return False, None
    if any(v._views or v._shard.unsharded is not None for v in views):
        return False, None
    # Items of lists at the same position belong together, as in ``torch._foreach_add_``.
    lists = [value for value in (*args, *kwargs.values()) if isinstance(value, list | tuple)]
    together = zip(*lists, strict=False) if isinstance(first, list | tuple) else [views]
    if any(len({v._shard.layout for v in _views_in(items)}) > 1 for items in together):
        return False, None
    for target in targets:
        _check_leaf(target)

    def local(value: Any) -> Any:
        return value._shard.local.detach() if isinstance(value, FullTensorView) else value

    with torch.no_grad():
        func(*tree_map(local, args), **tree_map(local, kwargs))
    for target in targets:
        target._shard.on_change()
    return True, first if isinstance(first, FullTensorView) else None


def _check_leaf(view: Any) -> None:
    """Raise autograd's error for an in-place change of a parameter while gradients are enabled."""
    if torch.is_grad_enabled() and isinstance(view, ShardedParameter) and view.requires_grad:
        what = "a leaf Variable that requires grad is being used in an in-place operation."
        raise RuntimeError(what)


def _run_on_full_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on gathered tensors, and copy those that it changes back to the shards."""
    gathered: dict[int, Gathered] = {}

    def full(value: Any) -> Any:
        if not isinstance(value, FullTensorView):
            return value
        if id(value) not in gathered:
            base, tensor = resolve(value)
            version = -1 if base.is_inference() else base._version
            gathered[id(value)] = value, base, tensor, version
        return gathered[id(value)][2]

    result = func(*tree_map(full, args), **tree_map(full, kwargs))
    targets = {id(view) for view in _views_in(_in_place_targets(func, args, kwargs))}
    for view, base, _, version in gathered.values():
        if id(view) in targets or (version >= 0 and base._version != version):
            _check_leaf(view)
            view._shard.copy_from(base.detach())
    if isinstance(result, tuple | list) and not hasattr(result, "_fields"):
        items = [_wrap_result(r, i, func, args, kwargs, gathered) for i, r in enumerate(result)]
        return type(result)(items)
    return _wrap_result(result, None, func, args, kwargs, gathered)


def _in_place_targets(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what ``func`` changes according to its name: not all operations count versions."""
    name = func.__name__
    in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    return kwargs.get("out"), args[:1] if in_place else ()


def _wrap_result(
    result: Any, item: int | None, func: Any, args: Any, kwargs: Any, gathered: dict[int, Gathered]
) -> Any:
    """Return a result for the cell: a view of a gathered tensor becomes a full tensor view."""
    if not isinstance(result, Tensor):
        return result
    for view, base, tensor, _ in gathered.values():
        if result is tensor:
            return view
        if view._shard.unsharded is None and result._is_view() and result._base is base:
            wrapped = full_view_of(view._shard, result)
            wrapped._views = (*view._views, ViewOp(func, args, kwargs, view, item))
            leaf = view if isinstance(view, ShardedParameter) else view._leaf
            wrapped._leaf = leaf if result.requires_grad else None
            return wrapped
    return result


FullTensorView._dispatch = staticmethod(dispatch)
