"""Reducers for types whose own ``__reduce__`` loses something."""

from __future__ import annotations

import functools
import io
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nbmgpu.trackers.registry import pickled_types

from . import library_types, pandas_types, python_types, torch_types


@dataclass(frozen=True)
class Reducer:
    """How objects of some types are reduced.

    Attributes:
        applies_to: whether the reducer is for objects of this type.
        reduce: returns the reduced value of an object, or None to use the default reduction.
    """

    applies_to: Callable[[type], bool]
    reduce: Callable[[Any], Any]


def has_reducer(kind: type) -> bool:
    """Return whether ``custom_reduce`` may return a value for objects of type ``kind``."""
    return any(reducer.applies_to(kind) for reducer in _reducers())


def custom_reduce(obj: Any) -> Any:
    """Return the reduced value of ``obj`` if a reducer applies, else None."""
    kind = type(obj)
    found = (reducer.reduce(obj) for reducer in _reducers() if reducer.applies_to(kind))
    return next((reduced for reduced in found if reduced is not None), None)


FILES = io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom
"""What ``open`` returns."""


@functools.cache
def _reducers() -> tuple[Reducer, ...]:
    """Return all reducers; imports torch."""
    import torch.utils.data

    return (
        Reducer(_subclass_of(BaseException), python_types.reduce_exception),
        Reducer(_is_own_module_type, python_types.reduce_module),
        Reducer(_subclass_of(types.CellType), python_types.reduce_cell),
        Reducer(_subclass_of(functools._lru_cache_wrapper), python_types.reduce_cached),
        Reducer(_subclass_of(functools.cached_property), python_types.reduce_cached_property),
        Reducer(
            _subclass_of(weakref.ReferenceType),
            python_types.reduce_reference,
        ),
        Reducer(python_types.is_stream, python_types.reduce_stream),
        *(Reducer(_subclass_of(kind), python_types.reduce_file) for kind in FILES),
        Reducer(lambda kind: hasattr(kind, "_shared_state"), python_types.reduce_shared_state),
        Reducer(_named("torch.utils._pytree", "LeafSpec"), lambda _: (torch_types.leaf_spec, ())),
        Reducer(_named("accelerate", "ConvertOutputsToFp32"), library_types.reduce_conversion),
        Reducer(
            _named("transformers.utils.output_capturing", "CompileableContextVar"),
            library_types.reduce_collector,
        ),
        *(Reducer(tracked.matches, tracked.reduce) for tracked in pickled_types()),
        Reducer(_subclass_of(torch.utils.data.DataLoader), torch_types.reduce_loader),
        Reducer(_subclass_of(torch.optim.Optimizer), torch_types.reduce_optimizer),
        Reducer(_subclass_of(torch.nn.Module), torch_types.reduce_module),
        Reducer(_pandas_type("Block"), pandas_types.reduce_block),
        Reducer(_pandas_type("Index"), pandas_types.reduce_index),
        Reducer(
            _pandas_type("BlockValuesRefs"),
            pandas_types.reduce_references,
        ),
        Reducer(_pandas_type("SingleBlockManager"), pandas_types.reduce_series),
    )


def _subclass_of(base: type) -> Callable[[type], bool]:
    return lambda kind: issubclass(kind, base)


def _is_own_module_type(kind: type) -> bool:
    return issubclass(kind, types.ModuleType) and kind is not types.ModuleType


def _named(package: str, name: str) -> Callable[[type], bool]:
    """Match a class by its name, so that its library need not be imported."""
    return lambda kind: kind.__name__ == name and kind.__module__.startswith(package)


def _pandas_type(base: str) -> Callable[[type], bool]:
    """Match pandas' class ``base`` and its subclasses by name."""
    return lambda kind: any(
        k.__name__ == base and k.__module__.partition(".")[0] == "pandas" for k in kind.__mro__
    )
