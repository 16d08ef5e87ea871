"""Rules of operators that select samples by an index or a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .elementwise_ops import elementwise
from .op_call import OpCall, OutputTags
from .selection_ops import select_samples
from .tags import Batched, CrossSample, Shape, Tag

MAX_INDEX_ELEMENTS = 50_000
"""Elements of an index or mask up to which its values are read."""


@dataclass(frozen=True)
class DimIndex:
    """The index of one dimension.

    Attributes:
        indices: the indices along the dimension.
        tag: the tag of the index tensor.
        is_mask: whether they are the indices of a boolean mask.
    """

    indices: Tensor
    tag: Tag | None
    is_mask: bool


@dataclass(frozen=True)
class AdvancedIndex:
    """An advanced index.

    Attributes:
        dims: the index of each indexed dimension.
        shape: the shape of the tensor.
    """

    dims: dict[int, DimIndex]
    shape: Shape

    @classmethod
    def from_call(cls, call: OpCall) -> AdvancedIndex:
        """Read the index of ``call``; a mask indexes each of its dimensions."""
        tags = {id(t): tag for t, tag in zip(call.tensors, call.tags, strict=True)}
        dims: dict[int, DimIndex] = {}
        dim = 0
        for index in call.arguments["indices"]:
            if index is None:
                dim += 1
                continue
            is_mask = index.dtype in (torch.bool, torch.uint8)
            for indices in index.nonzero(as_tuple=True) if is_mask else (index,):
                dims[dim] = DimIndex(indices, tags.get(id(index)), is_mask)
                dim += 1
        return cls(dims, tuple(call.arguments["self"].shape))

    @property
    def ndim(self) -> int:
        """Number of dimensions of the output that replace the indexed ones."""
        return len(torch.broadcast_shapes(*(each.indices.shape for each in self.dims.values())))

    @property
    def adjacent(self) -> bool:
        """Whether the indexed dimensions are adjacent; else the new ones come first."""
        return list(self.dims) == list(range(min(self.dims), min(self.dims) + len(self.dims)))

    @property
    def trailing_dims(self) -> int:
        """Number of dimensions of the output after the new ones."""
        count = len(self.shape)
        return count - max(self.dims) - 1 if self.adjacent else count - len(self.dims)

    def output_dim(self, dim: int) -> int:
        """Return the position, from the right, of a dimension that is not indexed."""
        behind = sum(d not in self.dims for d in range(dim, len(self.shape)))
        return -behind - (self.ndim if self.adjacent and min(self.dims) > dim else 0)


def index(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Advanced indexing: masks, and index tensors for some dimensions."""
    advanced, tag = AdvancedIndex.from_call(call), call.tag_of("self")
    index_tags = {each.tag for each in advanced.dims.values() if isinstance(each.tag, Batched)}
    if tag is None and len(index_tags) == 1 and advanced.ndim:  # rows of a table
        index_tag = index_tags.pop()
        assert isinstance(index_tag, Batched)
        return [replace(index_tag, dim=index_tag.dim - advanced.trailing_dims)]
    if not isinstance(tag, Batched):
        return [tag]
    dim = len(advanced.shape) + tag.dim
    if dim not in advanced.dims:
        return [replace(tag, dim=advanced.output_dim(dim))]
    of_batch = advanced.dims[dim]
    indices = of_batch.indices
    if advanced.ndim != 1 or indices.ndim != 1 or len(indices) > MAX_INDEX_ELEMENTS:
        return [None]
    positions = [i // tag.block_size % len(tag.samples) for i in indices.tolist()]
    selected = _select_by_index(tag, positions, of_batch)
    others = [
        each.tag
        for each in advanced.dims.values()
        if not each.is_mask and isinstance(each.tag, Batched)
    ]
    if any(other.samples != selected.samples for other in others):
        return [call.cross_sample()]
    return [replace(selected, dim=-advanced.trailing_dims - 1, block_size=1)]


def _select_by_index(tag: Batched, positions: list[int], by: DimIndex) -> Batched:
    """Return the tag of the samples at ``positions``, which ``by`` may select by value."""
    selected = select_samples(tag, positions)
    same_batch = isinstance(by.tag, Batched) and by.tag.sources == tag.sources
    by_value = same_batch and (by.is_mask or by.tag.samples == selected.samples)  # type: ignore[union-attr]
    return replace(selected, sources=tag.sources) if by_value else selected


def index_select(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """An index tensor for one dimension."""
    tag, shape = call.tag_of("self"), tuple(call.arguments["self"].shape)
    by = DimIndex(call.arguments["index"], call.tag_of("index"), False)
    dim = call.arguments["dim"] % len(shape)
    if tag is None:  # rows of a table
        return [replace(by.tag, dim=dim - len(shape)) if isinstance(by.tag, Batched) else by.tag]
    if not isinstance(tag, Batched) or dim != len(shape) + tag.dim:
        return [tag]
    if not tag.one_sample_per_index or len(tag.samples) != shape[dim]:
        return [None]
    return [_select_by_index(tag, by.indices.tolist(), by)]


def index_add(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Rows of ``source`` added to rows of a tensor, such as messages between nodes of a graph."""
    tag, of_source, index = call.tag_of("self"), call.tag_of("source"), call.arguments["index"]
    dim, ndim = call.arguments["dim"] % max(outputs[0].dim(), 1), outputs[0].dim()
    rows: list[set[int]] = [set() for _ in range(outputs[0].shape[dim])] if ndim else []
    pairs: list[tuple[Tag | None, Sequence[int]]] = []
    if tag is not None:
        pairs.append((tag, range(len(rows))))
    if len(index) > MAX_INDEX_ELEMENTS:
        return [None]
    pairs.append((of_source, index.tolist()))
    for each, places in pairs:
        if (
            not isinstance(each, Batched)
            or each.dim != dim - ndim
            or len(each.samples) != len(places)
        ):
            return [None]
        for place, sample in zip(places, each.samples, strict=True):
            rows[place].add(sample)
    one_row = len(index) == 1  # of the only sample; on one device, it may be another one's
    if any(len(samples) > 1 for samples in rows) or one_row:
        return [call.cross_sample()]
    if not isinstance(of_source, Batched) or not all(rows):
        return [None]
    return [replace(of_source, samples=tuple(min(samples) for samples in rows))]


def masked_select(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """The elements for which a mask is true."""
    tag, mask = elementwise(call, call.arguments["self"]), call.arguments["mask"]
    if not isinstance(tag, Batched) or tuple(mask.shape) != tuple(call.arguments["self"].shape):
        return [tag if isinstance(tag, CrossSample) else None]
    selected = _select_by_mask(mask, tag)
    return [selected and replace(selected, dim=-1)]


def nonzero(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """The indices of nonzero elements: a row of numbers for each."""
    tag = call.first_tag
    selected = _select_by_mask(call.tensors[0], tag) if isinstance(tag, Batched) else None
    return [selected and replace(selected, dim=-2)]


def _select_by_mask(mask: Tensor, tag: Batched) -> Batched | None:
    """Return the tag of the elements that ``mask`` selects, each by its own value."""
    if mask.numel() > MAX_INDEX_ELEMENTS:
        return None
    indices = mask.nonzero(as_tuple=True)[tag.dim].tolist()
    positions = [index // tag.block_size % len(tag.samples) for index in indices]
    return replace(select_samples(tag, positions, by_value=True), block_size=1)


def index_put(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Rows of a table written at the places that labels name: of several samples, one remains."""
    index = [each for each in call.arguments["indices"] if each is not None]
    values = call.tag_of("values")
    by_label = len(index) == 1 and _has_repeated_labels(index[0], call.tag_of_tensor(index[0]))
    is_table = call.tag_of("self") is None and isinstance(values, Batched) and by_label
    return [call.cross_sample() if is_table and not call.arguments["accumulate"] else None]


def _has_repeated_labels(index: Tensor, tag: Tag | None) -> bool:
    """Return whether an index has the same label for several samples; a mask has none."""
    if index.dtype in (torch.bool, torch.uint8) or not isinstance(tag, Batched):
        return False
    return len(index.unique()) < index.numel()


def scatter_reduce(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Elements reduced at the places that an index names; sums are those of ``gather``."""
    dim, ndim, tag = call.arguments["dim"], outputs[0].dim(), call.tag_of("index")
    along_samples = isinstance(tag, Batched) and dim % max(ndim, 1) == ndim + tag.dim
    if call.arguments["reduce"] != "sum" and along_samples:
        return [call.cross_sample()]
    return gather(call, outputs)


def gather(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Indices along ``dim``; elements keep their position in other dimensions."""
    tags = {tag for tag in call.tags if tag is not None}
    tag, count = tags.pop(), outputs[0].dim()
    if tags:
        return [call.cross_sample()]
    if not isinstance(tag, Batched):
        return [tag]
    if call.arguments["dim"] % max(count, 1) == count + tag.dim:
        return [call.cross_sample() if call.tag_of("self") is not None else None]
    if call.tag_of("index") is None and not _is_alike(call.arguments["index"], tag, outputs[0]):
        return [call.cross_sample()]
    return [tag]


def _is_alike(index: Tensor, tag: Batched, output: Tensor) -> bool:
    """Return whether an index of no batch names the same places for each sample."""
    if index.shape[tag.dim] < output.shape[tag.dim] or index.numel() > MAX_INDEX_ELEMENTS:
        return False
    return bool((index == index.narrow(tag.dim, 0, 1)).all())
