"""Reducers for pandas' internal types, which record what shares memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def reduce_series(manager: Any) -> Any:
    """Reduce the block manager of a Series without splitting its block."""
    return type(manager), (manager.blocks[0], manager.axes[0])  # the default splits blocks


def reduce_block(block: Any) -> Any:
    """Keep the references by which pandas tracks shared memory for copy-on-write.

    The default reduction drops them because it copies memory; here memory stays shared.
    """
    if getattr(block, "refs", None) is None:  # pandas 1
        return None
    make, args, *_ = block.__reduce__()
    return _block, (make, args, block.refs)


def _block(make: Callable[..., Any], args: tuple[Any, ...], refs: Any) -> Any:
    block = make(*args)
    block.refs = refs
    refs.add_reference(block)
    return block


def reduce_index(index: Any) -> Any:
    """Keep the references of an Index, as ``reduce_block`` does."""
    refs = getattr(index, "_references", None)
    if refs is None or type(index).__name__ == "RangeIndex":  # has no buffer
        return None
    make, args, *_ = index.__reduce__()
    return _index, (make, args, refs)


def _index(make: Callable[..., Any], args: tuple[Any, ...], refs: Any) -> Any:
    index = make(*args)
    index._references = refs
    refs.add_index_reference(index)
    return index


class _OtherReferences:
    """Represents all objects of the notebook that share memory and were not sent."""


_other_references = _OtherReferences()


def reduce_references(refs: Any) -> Any:
    """Reduce pandas' record of shared memory to whether anything shares it."""
    return _make_references, (refs.has_reference(),)


def _make_references(shared: bool) -> Any:
    """Create pandas' record of shared memory, which says that other objects share it."""
    refs = importlib.import_module("pandas._libs.internals").BlockValuesRefs()
    if shared:  # so that a write copies, and is not written back into the other objects
        refs.add_index_reference(_other_references)
    return refs
