"""Sharded tensors that look like full tensors to the cell.

While a model is sharded, the cell keeps its own objects: its parameters change their class to
``ShardedParameter``, and ``__torch_function__`` handles every operation on them.  An elementwise
in-place operation runs on this rank's part; any other one runs on the full tensor, which is
gathered for it, and changes are copied back into the parts (``view_operations``).  So ``p.norm()``,
``p.data[0] = 1``, an average of weights or a penalty on them have the results of one device, and no
alias in the cell becomes stale.  Gathering may be collective because all ranks run the same cell.

A view of such a tensor (``p[0]``, ``p.T``) is a ``ShardedTensor`` that is recomputed each time it
is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from .tensor_shard import TensorShard

if TYPE_CHECKING:
    from .param_state import ParamState


@dataclass(frozen=True)
class ViewOp:
    """The operation that created a view, to apply it again.

    Attributes:
        function, args, kwargs: the call.
        base: the argument that is replaced by the tensor to view.
        item: index of the view in the result, if that is a sequence.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    base: Any
    item: int | None = None

    def apply(self, tensor: Tensor) -> Tensor:
        """Return the view of ``tensor``."""

        def replace(value: Any) -> Any:
            return tensor if value is self.base else value

        args, kwargs = tree_map(replace, (self.args, self.kwargs))
        result: Any = self.function(*args, **kwargs)
        return result if self.item is None else result[self.item]  # type: ignore[no-any-return]


class FullTensorView:
    """Base class of ``ShardedParameter`` and ``ShardedTensor``.

    Attributes:
        _shard: this rank's part.
        _views: operations that lead from the full tensor to this view of it.
        _leaf: the parameter whose gradient this view contributes to, if any.
    """

    _shard: TensorShard
    _views: tuple[ViewOp, ...] = ()
    _leaf: ShardedParameter | None = None
    _dispatch: ClassVar[Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]]
    """Runs operations; set by ``view_operations``, which imports this module."""
    _is_excluded: ClassVar[bool] = False

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run ``func`` with the result of one device."""
        return cls._dispatch(func, args, kwargs or {})

    @classmethod
    def exclude_from_compilation(cls) -> None:
        """Let compiled graphs end at operations on views.

        They would guard the strides that a parameter of the cell shows, but does not have.  Called
        when there are views: it imports torch's compiler, which takes a second.
        """
        if not FullTensorView._is_excluded:
            function: Any = FullTensorView.__torch_function__
            disabled: Any = classmethod(torch.compiler.disable(function.__func__))
            FullTensorView.__torch_function__ = disabled  # type: ignore[method-assign]
            FullTensorView._is_excluded = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a full, plain copy."""
        if id(self) not in memo:
            memo[id(self)] = _plain(self, clone=True)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a full, plain tensor, which can be loaded without this package."""
        return _plain(self, clone=False).__reduce_ex__(protocol)

    def __repr__(self, **options: Any) -> str:
        """Show the full tensor."""
        return repr(_plain(self, clone=False))

    __hash__ = Tensor.__hash__


class ShardedParameter(FullTensorView, nn.Parameter):  # type: ignore[misc]
    """A parameter of the cell while its model is sharded.  Its own memory holds NaN."""

    _param_state: ParamState


class ShardedTensor(FullTensorView, Tensor):  # type: ignore[misc]
    """A sharded gradient, optimizer state, alias or view."""

    __slots__: list[str] = []

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Handle code that bypasses ``__torch_function__``, such as torch.func."""
        return func(*tree_map(full_tensor_of, args), **tree_map(full_tensor_of, kwargs or {}))


def full_view_of(shard: TensorShard, like: Tensor | None = None) -> ShardedTensor:
    """Return a tensor that represents ``shard``, or a view of it that is shaped like ``like``."""
    shape = shard.shape if like is None else like.shape
    strides = None if like is None else like.stride()
    view: ShardedTensor = Tensor._make_wrapper_subclass(
        ShardedTensor, shape, strides, dtype=shard.local.dtype if like is None else like.dtype,
        device=shard.device, requires_grad=False,
    )  # fmt: skip
    view._shard = shard
    return view


def full_tensor_of(value: Any) -> Any:
    """Return the full tensor of a view, and any other value unchanged; collective for views."""
    return resolve(value)[1] if isinstance(value, FullTensorView) else value


def _plain(view: Any, clone: bool) -> Tensor:
    """Return the full tensor of ``view``, as a parameter if it is one."""
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        requires_grad = view.requires_grad
    with torch.no_grad():
        full = resolve(view)[1].detach()
    shared = (view._shard.unsharded, view._shard.local)
    full = full.clone() if clone and any(_same_memory(full, t) for t in shared) else full
    if isinstance(view, ShardedParameter):
        kept = {k: v for k, v in vars(view).items() if k not in ("_shard", "_param_state")}
        parameter = nn.Parameter(full, requires_grad)
        parameter.__dict__.update(kept)
        return parameter
    return full


def _same_memory(tensor: Tensor, other: Tensor | None) -> bool:
    addresses = (t.untyped_storage().data_ptr() for t in (tensor, other) if t is not None)
    return other is not None and len(set(addresses)) == 1


def resolve(view: Any) -> tuple[Tensor, Tensor]:
    """Gather the tensor that ``view`` represents; collective.

    Returns:
        The full base tensor, and the view of it, which is the base itself if ``_views`` is empty.
    """
    leaf = view if isinstance(view, ShardedParameter) else view._leaf
    if leaf is not None and torch.is_grad_enabled() and leaf.requires_grad:
        with torch._C.DisableTorchFunctionSubclass():
            base: Tensor = leaf._param_state.gather_for_graph()
    else:
        base = view._shard.full_tensor()
    tensor = base
    for view_op in view._views:
        tensor = view_op.apply(tensor)
    return base, tensor
