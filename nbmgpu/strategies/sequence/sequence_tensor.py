"""Tensors of which each rank has a slice of the sequence, and which look whole to the cell.

Like a DTensor, such a tensor is part of autograd's graph, and so is its slice: ``FromPart`` and
``ToPart`` lead from one to the other.  Other than a DTensor, it runs no operation itself: it is
gathered for each, except for a call of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from nbmgpu.strategies.sharding.collectives import gather_parts, split_parts
from nbmgpu.strategies.sharding.tensor_shard import ShardLayout

METADATA = frozenset({
    "shape", "dtype", "device", "layout", "ndim", "requires_grad", "grad_fn", "is_leaf", "is_cuda",
    "is_cpu", "itemsize", "nbytes", "is_sparse", "is_quantized", "is_mps", "is_meta", "is_nested",
    "names", "_version",
})  # fmt: skip
"""Attributes that need no values."""

METADATA_METHODS = frozenset({
    "size", "dim", "numel", "nelement", "ndimension", "element_size", "is_floating_point",
    "is_complex", "get_device", "__len__", "__hash__", "_is_view", "is_inference",
})  # fmt: skip
"""Methods that need no values."""


class SequenceTensor(Tensor):
    """An output of a block, which is gathered when anything but another block uses it.

    Attributes:
        part: this rank's slice, outside of autograd's graph.
        part_layout: how the tensor is split.
        can_gather: class attribute; False after a failure, when other ranks may have exited.
        operations: class attribute; operations that run on slices, by name.  They return
            ``NotImplemented`` where they cannot.
    """

    can_gather: ClassVar[bool] = True
    operations: ClassVar[dict[str, Callable[..., Any]]] = {}

    part: Tensor
    part_layout: ShardLayout
    _whole: Tensor | None = None
    _part_in_graph: Tensor | None = None

    @staticmethod
    def make(part: Tensor, layout: ShardLayout) -> SequenceTensor:
        """Return the tensor of which this rank has ``part``, as part of its graph."""
        return FromPart.apply(part, layout)  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def wrap(part: Tensor, layout: ShardLayout, requires_grad: bool = False) -> SequenceTensor:
        """Return the tensor of which this rank has ``part``, outside of its graph."""
        made: SequenceTensor = Tensor._make_wrapper_subclass(
            SequenceTensor, layout.shape, dtype=part.dtype, device=part.device,
            requires_grad=requires_grad,
        )  # fmt: skip
        made.part, made.part_layout = part.detach(), layout
        return made

    def whole(self) -> Tensor:
        """Return the whole tensor; the first call is collective.

        After a failure it cannot be gathered, and is filled with NaN.
        """
        records = self.requires_grad and torch.is_grad_enabled()
        if self._whole is None or (records and not self._whole.requires_grad):
            if not SequenceTensor.can_gather:
                return torch.full(self.shape, float("nan"), dtype=self.dtype, device=self.device)
            self._whole = self._gather()
        return self._whole

    def _gather(self) -> Tensor:
        return gather_parts(self.slice(), self.part_layout)

    @property
    def is_gathered(self) -> bool:
        """Whether the cell may have changed the whole tensor."""
        return self._whole is not None

    def slice_for_block(self, layout: ShardLayout) -> Tensor:
        """Return this rank's slice; what the cell has gathered, it may have changed."""
        if not self.is_gathered and layout == self.part_layout:
            return self.slice()
        return split_parts(self.whole(), layout)

    def slice(self) -> Tensor:
        """Return this rank's slice as part of the graph."""
        if not (self.requires_grad and torch.is_grad_enabled()):
            return self.part
        if self._part_in_graph is None:
            self._part_in_graph = ToPart.apply(self)  # type: ignore[no-untyped-call]
        return self._part_in_graph

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run ``func`` on slices if possible, otherwise with whole tensors."""
        name = getattr(func, "__name__", "")
        getter = name == "__get__" and func.__self__.__name__ in METADATA
        if getter or name in METADATA_METHODS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if name in cls.operations:
            result = cls.operations[name](func, *args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        # A checkpoint calls ``torch.autograd.backward`` while no gradients are recorded.
        with torch.set_grad_enabled(name == "backward" or torch.is_grad_enabled()):
            args, kwargs = tree_map(whole_of, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run what autograd itself does, such as adding gradients, with whole tensors."""
        args, kwargs = tree_map(_without_graph, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the whole tensor."""
        return self.whole().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy the whole tensor."""
        memo[id(self)] = self.whole().__deepcopy__(memo)
        return memo[id(self)]

    __hash__ = Tensor.__hash__


class FromPart(torch.autograd.Function):
    """Makes the tensor of which this rank has a slice; the transpose of ``ToPart``."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, layout: ShardLayout) -> SequenceTensor:
        """Wrap the slice."""
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        return SequenceTensor.wrap(part, layout, part.requires_grad)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        """Return this rank's slice of the gradient."""
        if isinstance(grad, SequenceTensor):
            return grad.slice_for_block(ctx.layout), None
        return None if grad is None else split_parts(grad, ctx.layout), None


class ToPart(torch.autograd.Function):
    """Returns this rank's slice; the transpose of ``FromPart``."""

    @staticmethod
    def forward(ctx: Any, tensor: SequenceTensor) -> Tensor:
        """Return the slice, not as a view: FSDP2 warns where it hooks one."""
        ctx.layout = tensor.part_layout
        ctx.set_materialize_grads(False)
        return tensor.part.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> SequenceTensor | None:
        """Wrap this rank's slice of the gradient."""
        return None if grad is None else SequenceTensor.make(grad, ctx.layout)


def whole_of(value: Any) -> Any:
    """Return the whole tensor of one that is split, and any other value unchanged."""
    return value.whole() if isinstance(value, SequenceTensor) else value


def _without_graph(value: Any) -> Any:
    if not isinstance(value, SequenceTensor):
        return value
    with torch.no_grad():
        return value.whole()
