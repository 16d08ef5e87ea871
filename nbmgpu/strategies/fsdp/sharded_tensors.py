"""Sharded tensors that look whole: what the cell sees in place of its parameters.

While a model is sharded, the cell keeps the very objects it has always had: its
parameters change their class to ``ShardedParameter``, and every operation on them goes
through ``__torch_function__``.  There, an operation that works element by element runs
on this rank's rows; any other one runs on the whole tensor, gathered for it, and what it
has changed goes back into the rows.  So ``p.norm()``, ``p.data[0] = 1``, an average of
weights or a penalty on them mean what they mean on one device, and no copy kept by the
cell is stale.  All ranks run the same cell, which is why gathering may be collective.

A view of such a tensor (``p[0]``, ``p.T``) is a ``ShardedTensor`` that is looked up anew
each time it is used.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from nbmgpu.errors import StrategyError, format_message

from .row_shards import ParameterSlot, Shard, View, Whole


class Face:
    """What ``ShardedParameter`` and ``ShardedTensor`` have in common."""

    _shard: Shard
    _views: tuple[View, ...] = ()
    _leaf: ShardedParameter | None = None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Do ``func`` as one device would."""
        return _call(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a whole, plain copy."""
        if id(self) not in memo:
            memo[id(self)] = _plain(self, clone=True)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Travel as a whole, plain tensor, which can be read without this package."""
        return _plain(self, clone=False).__reduce_ex__(protocol)

    def __repr__(self, **options: Any) -> str:
        """Show the whole tensor."""
        return repr(_plain(self, clone=False))

    __hash__ = Tensor.__hash__


class ShardedParameter(Face, nn.Parameter):  # type: ignore[misc]
    """A parameter of the cell while its model is sharded.  Its own memory holds NaN."""

    _slot: ParameterSlot


class ShardedTensor(Face, Tensor):  # type: ignore[misc]
    """A sharded tensor that is no parameter: a gradient, a state, an alias or a view."""

    __slots__: list[str] = []

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Serve those who come past ``__torch_function__``, such as torch.func."""
        return func(*tree_map(_whole_of, args), **tree_map(_whole_of, kwargs or {}))


def face_of(shard: Shard, like: Tensor | None = None) -> ShardedTensor:
    """Return a tensor that shows ``shard`` whole; ``like`` has the shape of a view of it."""
    shape = shard.shape if like is None else like.shape
    strides = None if like is None else like.stride()
    face: ShardedTensor = Tensor._make_wrapper_subclass(
        ShardedTensor, shape, strides, dtype=shard.local.dtype if like is None else like.dtype,
        device=shard.device, requires_grad=False,
    )  # fmt: skip
    face._shard = shard
    return face


def _whole_of(value: Any) -> Any:
    return resolve(value)[1] if isinstance(value, Face) else value


def _plain(face: Any, clone: bool) -> Tensor:
    """Return the whole tensor behind ``face``, as a parameter if it is one."""
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        requires_grad = face.requires_grad
    with torch.no_grad():
        whole = resolve(face)[1].detach()
    whole = whole.clone() if clone and face._shard.home is not None else whole
    if isinstance(face, ShardedParameter):
        kept = {k: v for k, v in vars(face).items() if k not in ("_shard", "_slot")}
        parameter = nn.Parameter(whole, requires_grad)
        parameter.__dict__.update(kept)
        return parameter
    return whole


def resolve(face: Any) -> tuple[Tensor, Tensor]:
    """Gather what ``face`` shows.

    Returns:
        The whole tensor that is its own base, and the view of it that the face is.
    """
    leaf = face if isinstance(face, ShardedParameter) else face._leaf
    if leaf is not None and torch.is_grad_enabled() and leaf.requires_grad:
        slot = leaf._slot
        with torch._C.DisableTorchFunctionSubclass():
            root: Tensor = Whole.apply(leaf, slot, face._shard)  # type: ignore[no-untyped-call]
        slot.gathered = [ref for ref in slot.gathered if ref() is not None]
        slot.gathered.append(weakref.ref(root))
    else:
        root = face._shard.whole()
    tensor = root
    for view in face._views:
        tensor = view.on(tensor)
    return root, tensor


# ----------------------------------------------------------------- operations

ELEMENTWISE = frozenset(
    f"{name}_"
    for name in (
        "add", "sub", "mul", "div", "zero", "fill", "clamp", "clamp_min", "clamp_max", "copy",
        "lerp", "addcmul", "addcdiv", "neg", "sqrt", "abs", "sign", "pow", "nan_to_num",
    )
) | {"__iadd__", "__isub__", "__imul__", "__itruediv__"}  # fmt: skip
FOREACH = frozenset(f"_foreach_{name}" for name in ELEMENTWISE)
"""In-place operations that may run on each rank's rows."""

SHAPE_ONLY = frozenset({
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "new_zeros",
    "new_ones", "new_empty", "new_full", "new_tensor",
    "stride", "is_contiguous", "is_set_to", "is_non_overlapping_and_dense",
})  # fmt: skip
"""Operations that look at shape, dtype and device, but never at a value."""

METADATA = frozenset({
    "size", "dim", "numel", "nelement", "ndimension", "element_size", "is_floating_point",
    "is_complex", "is_signed", "get_device", "__len__", "is_inference", "is_pinned", "is_same_size",
    "has_names", "_is_view", "is_conj", "is_neg", "_is_zerotensor", "is_tensor", "is_shared",
    "__hash__", "is_nonzero_static",
})  # fmt: skip
"""Methods that the object itself can answer."""

MEMORY = frozenset({"data_ptr", "untyped_storage", "storage", "storage_offset", "_typed_storage"})
"""Methods of those who look at memory."""


def _name(func: Any) -> tuple[str, str]:
    """Return of what kind ``func`` is (``get``, ``set``, ``delete`` or ``call``), and its name."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        return name.strip("_"), func.__self__.__name__
    return "call", name


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kind, name = _name(func)
    handler = HANDLERS.get((kind, name))
    if handler is not None:
        return handler(*args, **kwargs)
    if kind == "get" and name not in ("T", "mT", "H", "mH", "real", "imag"):
        return _bare(func, args, kwargs)
    if kind == "call" and name in METADATA:
        return _bare(func, args, kwargs)
    if name in MEMORY:
        return _memory(func, *args, **kwargs)
    if name in SHAPE_ONLY:
        return func(*tree_map(_empty, args), **tree_map(_empty, kwargs))
    if name in ELEMENTWISE or name in FOREACH:
        done, result = _on_rows(func, args, kwargs)
        if done:
            return result
    return _on_wholes(func, args, kwargs)


def _bare(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _empty(value: Any) -> Any:
    if not isinstance(value, Face):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        face: Any = value
        return torch.empty(
            face.shape, dtype=face.dtype, device=face.device, requires_grad=face.requires_grad
        )


def _memory(func: Any, face: Any, *args: Any, **kwargs: Any) -> Any:
    """Let somebody look at a whole copy, which lives as long as the face."""
    face._seen = face._shard.snapshot()
    tensor = face._seen
    for view in face._views:
        tensor = view.on(tensor)
    return func(tensor, *args, **kwargs)


def _faces(value: Any) -> Iterator[Any]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Face))


def _on_rows(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
    """Run an elementwise operation on this rank's rows, if all tensors are dealt out alike."""
    leaves = tree_leaves((args, kwargs))
    faces = [leaf for leaf in leaves if isinstance(leaf, Face)]
    plain = [x for x in leaves if isinstance(x, Tensor) and not isinstance(x, Face) and x.dim()]
    first: Any = args[0] if args else None
    targets = list(first) if isinstance(first, list | tuple) else [first]
    if plain or not all(isinstance(t, Face) for t in targets):
        return False, None
    if any(f._views or f._shard.home is not None for f in faces):
        return False, None
    if len(targets) == 1 and any(f._shard.shape != targets[0]._shard.shape for f in faces):
        return False, None
    for target in targets:
        _refuse_leaf(target)

    def local(value: Any) -> Any:
        return value._shard.local.detach() if isinstance(value, Face) else value

    with torch.no_grad():
        func(*tree_map(local, args), **tree_map(local, kwargs))
    for target in targets:
        target._shard.written()
    return True, first if isinstance(first, Face) else None


def _refuse_leaf(face: Any) -> None:
    """Raise what autograd raises when a parameter is changed while gradients are on."""
    if torch.is_grad_enabled() and isinstance(face, ShardedParameter) and face.requires_grad:
        what = "a leaf Variable that requires grad is being used in an in-place operation."
        raise RuntimeError(what)


def _on_wholes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on gathered tensors, and put back those that it has changed."""
    gathered: dict[int, tuple[Any, Tensor, Tensor, int]] = {}

    def whole(value: Any) -> Any:
        if not isinstance(value, Face):
            return value
        if id(value) not in gathered:
            root, tensor = resolve(value)
            version = -1 if root.is_inference() else root._version
            gathered[id(value)] = value, root, tensor, version
        return gathered[id(value)][2]

    result = func(*tree_map(whole, args), **tree_map(whole, kwargs))
    targets = {id(face) for face in _faces(_targets(func, args, kwargs))}
    for face, root, _, version in gathered.values():
        if id(face) in targets or (version >= 0 and root._version != version):
            _refuse_leaf(face)
            face._shard.put(root.detach())
    if isinstance(result, tuple | list) and not hasattr(result, "_fields"):
        items = [_shown(r, i, func, args, kwargs, gathered) for i, r in enumerate(result)]
        return type(result)(items)
    return _shown(result, None, func, args, kwargs, gathered)


def _targets(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what ``func`` is sure to change, judging by its name: not all count versions."""
    name = func.__name__
    in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    return kwargs.get("out"), args[:1] if in_place else ()


def _shown(
    result: Any, item: int | None, func: Any, args: Any, kwargs: Any,
    gathered: dict[int, tuple[Any, Tensor, Tensor, int]],
) -> Any:  # fmt: skip
    """Return a result as the cell may see it: aliases of faces are faces."""
    if not isinstance(result, Tensor):
        return result
    for face, root, tensor, _ in gathered.values():
        if result is tensor:
            return face
        if face._shard.home is None and result._is_view() and result._base is root:
            view = face_of(face._shard, result)
            view._views = (*face._views, View(func, args, kwargs, face, item))
            leaf = face if isinstance(face, ShardedParameter) else face._leaf
            view._leaf = leaf if result.requires_grad else None
            return view
    return result


# ----------------------------------------------------------------- attributes


def _get_grad(face: Any) -> Any:
    if not isinstance(face, ShardedParameter):
        return None
    return face._slot.grad_face()


def _set_grad(face: Any, grad: Any) -> None:
    if isinstance(face, ShardedParameter):
        face._slot.set_grad(grad)


def _alias(face: Any) -> Any:
    """Return ``face.detach()``, which shares its memory."""
    with torch._C.DisableTorchFunctionSubclass():
        like = None if not face._views else torch.empty_strided(
            face.shape, face.stride(), dtype=face.dtype, device="meta"
        )  # fmt: skip
    alias = face_of(face._shard, like)
    alias._views = face._views
    return alias


def _set_data(face: Any, data: Any) -> None:
    if tuple(data.shape) != tuple(face.shape) or data.dtype != face.dtype:
        raise StrategyError(
            format_message(
                f"A parameter of shape {tuple(face.shape)} and {face.dtype} cannot become one of "
                f"{tuple(data.shape)} and {data.dtype} while it is sharded",
                instead="changing the model before the optimizer is made, or --strategy ddp",
            )
        )
    face._shard.put(_whole_of(data) if not face._views else data)


def _get_requires_grad(face: Any) -> bool:
    if face._views:
        return face._leaf is not None and bool(face._leaf.requires_grad)
    return bool(_bare(Tensor.requires_grad.__get__, (face,), {}))  # type: ignore[attr-defined]


def _set_requires_grad(face: Any, requires_grad: bool = True) -> Any:
    _bare(Tensor.requires_grad.__set__, (face, requires_grad), {})  # type: ignore[attr-defined]
    if isinstance(face, ShardedParameter):
        face._slot.sharded().requires_grad_(requires_grad)
    return face


def _refuse_hook(face: Any, *args: Any, **kwargs: Any) -> Any:
    raise StrategyError(
        format_message(
            "A hook on a sharded parameter would see the gradient of one rank's share, "
            "before it is reduced",
            instead="a hook put there before the cell, or --strategy ddp",
        )
    )


def _backward_inputs(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.autograd.grad``: gradients of the whole tensors that stand for parameters."""
    wanted = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    names = ("grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused")
    options: dict[str, Any] = dict(zip(names, args, strict=False)) | kwargs
    allow = options.pop("allow_unused", None)
    materialize = options.pop("materialize_grads", False)
    stands = [stand_ins(t) for t in wanted]
    flat = [t for group in stands for t in group]
    found = iter(torch.autograd.grad(outputs, flat, allow_unused=True, **options) if flat else ())
    results: list[Any] = []
    for tensor, group in zip(wanted, stands, strict=True):
        grads = [g for g in (next(found) for _ in group) if g is not None]
        if not grads and not allow and not materialize:
            what = "One of the differentiated Tensors appears to not have been used in the graph."
            raise RuntimeError(what + " Set allow_unused=True if this is the desired behavior.")
        total = sum(grads[1:], grads[0]) if grads else None
        results.append(torch.zeros(tensor.shape) if total is None and materialize else total)
    return tuple(results)


def stand_ins(face: Any) -> list[Tensor]:
    """Return the whole tensors in autograd's graphs that ``face`` stands for."""
    if not isinstance(face, ShardedParameter):
        return [face]
    slot: ParameterSlot = face._slot
    whole = slot.unsharded()
    gathered = [t for ref in slot.gathered if (t := ref()) is not None]
    return ([] if whole is None else [whole]) + gathered


def _unscale(grads: Any, found_inf: Tensor, inv_scale: Tensor) -> None:
    """Unscale gradients for a GradScaler; all ranks know of an infinite one."""
    faces = list(_faces(grads))
    for face in faces:
        assert not face._views
    parts = [g._shard.local if isinstance(g, Face) else g for g in grads]
    torch._amp_foreach_non_finite_check_and_unscale_(parts, found_inf, inv_scale)
    dist.all_reduce(found_inf, dist.ReduceOp.MAX)


HANDLERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("get", "grad"): _get_grad,
    ("set", "grad"): _set_grad,
    ("delete", "grad"): lambda face: _set_grad(face, None),
    ("get", "data"): _alias,
    ("set", "data"): _set_data,
    ("call", "detach"): _alias,
    ("get", "requires_grad"): _get_requires_grad,
    ("set", "requires_grad"): _set_requires_grad,
    ("call", "requires_grad_"): _set_requires_grad,
    ("call", "register_hook"): _refuse_hook,
    ("call", "register_post_accumulate_grad_hook"): _refuse_hook,
    ("call", "grad"): _backward_inputs,
    ("call", "_amp_foreach_non_finite_check_and_unscale_"): _unscale,
    ("call", "__deepcopy__"): Face.__deepcopy__,
    ("call", "__reduce_ex__"): Face.__reduce_ex__,
    ("call", "__repr__"): lambda face, **options: Face.__repr__(face),
}
