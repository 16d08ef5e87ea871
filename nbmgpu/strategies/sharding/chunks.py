"""The sizes of a dimension's parts, as ``torch.chunk`` splits it: the last ones may be smaller."""

from __future__ import annotations


def chunk_size(size: int, ranks: int) -> int:
    """Return the size of the first rank's part of a dimension."""
    return -(-size // ranks)


def chunk_sizes(size: int, ranks: int) -> list[int]:
    """Return the sizes of all ranks' parts: 2, 2, 1 and 0 of 5 for four ranks."""
    chunk = chunk_size(size, ranks)
    return [max(min(chunk, size - rank * chunk), 0) for rank in range(ranks)]


def leaves_none_empty(size: int, ranks: int) -> bool:
    """Whether each rank has a part."""
    return (ranks - 1) * chunk_size(size, ranks) < size
