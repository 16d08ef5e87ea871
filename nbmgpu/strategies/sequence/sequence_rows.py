"""Operations on slices of a model's output, up to the loss.

The logits of a language model are its largest tensor, (batch, sequence, vocabulary).  So what is
usual between the head and ``cross_entropy`` runs on slices, and only the loss is summed over ranks,
as in DeepSpeed's ALST (Bekman et al. 2025, 2506.13996).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from nbmgpu.strategies.sharding.chunks import leaves_none_empty
from nbmgpu.strategies.sharding.collectives import split_parts, sum_partials
from nbmgpu.strategies.sharding.tensor_shard import ShardLayout

from .sequence_tensor import SequenceTensor


class SequenceRows(SequenceTensor):
    """All positions of a tensor as rows, shape (batch * sequence, features)."""

    @staticmethod
    def of(tensor: SequenceTensor) -> SequenceRows:
        """Return the rows of a tensor of shape (batch, sequence, features)."""
        rows: SequenceRows = RowsFromPart.apply(tensor.slice(), tensor.part_layout)  # type: ignore[no-untyped-call]
        rows._tensor = tensor
        return rows

    _tensor: SequenceTensor

    def whole(self) -> Tensor:
        """Return the whole rows; the first call is collective."""
        return self._tensor.whole().flatten(0, 1)

    def slice(self) -> Tensor:
        """Return this rank's slice, shape (batch, slice, features)."""
        return self._tensor.slice()

    @property
    def is_gathered(self) -> bool:
        """Whether the cell may have changed the whole tensor."""
        return self._tensor.is_gathered


class RowsFromPart(torch.autograd.Function):
    """Makes the rows of which this rank has a slice; see ``FromPart``."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, layout: ShardLayout) -> SequenceRows:
        """Wrap the slice."""
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        batch, length, features = layout.shape
        rows: SequenceRows = Tensor._make_wrapper_subclass(
            SequenceRows, (batch * length, features), dtype=part.dtype, device=part.device,
            requires_grad=part.requires_grad,
        )  # fmt: skip
        rows.part_layout = layout
        return rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        """Return this rank's slice of the gradient."""
        return None if grad is None else split_parts(grad.view(ctx.layout.shape), ctx.layout), None


def _is_sliced(tensor: Any) -> bool:
    """Whether a tensor is split along its second dimension, and nobody has seen the whole."""
    return (
        type(tensor) is SequenceTensor
        and not tensor.is_gathered
        and tensor.dim() == 3
        and tensor.part_layout.dim == 1
    )


def _elementwise(func: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a conversion on the slice."""
    others = (*args, *kwargs.values())
    if not _is_sliced(tensor) or any(isinstance(x, Tensor) for x in others):
        return NotImplemented
    part = func(tensor.slice(), *args, **kwargs)
    return tensor if part is tensor.slice() else SequenceTensor.make(part, tensor.part_layout)


def _rows(func: Callable[..., Any], tensor: Any, *shape: Any, **kwargs: Any) -> Any:
    """Return rows for ``view(-1, features)``."""
    sizes = shape[0] if shape and isinstance(shape[0], tuple | list) else shape
    if not _is_sliced(tensor) or kwargs or len(sizes) != 2 or sizes[1] != tensor.shape[2]:
        return NotImplemented
    if sizes[0] not in (-1, tensor.shape[0] * tensor.shape[1]):
        return NotImplemented
    return SequenceRows.of(tensor)


def _flatten(func: Callable[..., Any], tensor: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Return rows for ``flatten(0, 1)``."""
    if not _is_sliced(tensor) or (start_dim, end_dim) not in ((0, 1), (0, -2)):
        return NotImplemented
    return SequenceRows.of(tensor)


def _getitem(func: Callable[..., Any], tensor: Any, key: Any) -> Any:
    """Return all positions, or all but the last, for ``[:, :]`` and ``[:, :-1]``."""
    if not _is_sliced(tensor) or not isinstance(key, tuple):
        return NotImplemented
    everything, but_last = (slice(None), slice(0, None)), slice(None, -1)
    if key[:1] == (Ellipsis,) and len(key) == 3:
        key = (slice(None), *key[1:])
    if len(key) > 3 or not all(isinstance(k, slice) for k in key):
        return NotImplemented
    if all(k in everything for k in key):
        return tensor
    if key[1:2] == (but_last,) and all(k in everything for k in (*key[:1], *key[2:])):
        return _without_last(tensor)
    return NotImplemented


def _without_last(tensor: SequenceTensor) -> Any:
    """Return a tensor without its last position, if the other slices stay as they are."""
    before = tensor.part_layout
    batch, length, features = before.shape
    after = ShardLayout(torch.Size((batch, length - 1, features)), 1, before.group)
    whole = leaves_none_empty(length - 1, dist.get_world_size(before.group))
    if after.chunk_size != before.chunk_size or not whole:
        return NotImplemented
    size = after.part_size
    return SequenceTensor.make(tensor.slice()[:, :size], after)


def _cross_entropy(
    func: Callable[..., Any],
    input: Any,
    target: Any,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Return the loss of all rows: the ranks' sums, divided by the weight of all targets."""
    if (
        not isinstance(input, SequenceRows)
        or input.is_gathered
        or isinstance(target, SequenceTensor)
        or target.dim() != 1
        or reduction == "none"
        or size_average is not None
        or reduce is not None
    ):
        return NotImplemented
    layout = input.part_layout
    targets = ShardLayout(layout.shape[:2], 1, layout.group)
    own = targets.part_of(target.view(targets.shape)).flatten()
    total = sum_partials(
        F.cross_entropy(
            input.slice().flatten(0, 1), own, weight, ignore_index=ignore_index,
            reduction="sum", label_smoothing=label_smoothing,
        ),
        layout.group,
    )  # fmt: skip
    if reduction == "sum":
        return total
    counts = target != ignore_index
    if weight is not None:
        counts = weight[target.where(counts, 0)] * counts
    return total / counts.sum()


OPERATIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("float", "half", "bfloat16", "double", "to", "contiguous"), _elementwise),
    "view": _rows,
    "reshape": _rows,
    "flatten": _flatten,
    "__getitem__": _getitem,
    "cross_entropy": _cross_entropy,
}
"""What runs on slices, by name."""
