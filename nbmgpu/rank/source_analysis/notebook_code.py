"""Collects the names and numbers that the notebook's code uses."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch

from .divisions import (
    assigned_names,
    cell_divides_by_multiple,
    cell_scales_by_size,
    function_divides_by_multiple,
    function_scales_by_size,
)
from .gradient_reads import cell_reads_gradients, function_reads_gradients

SETTINGS_MODULES = {"__main__", "argparse", "types"}
"""Modules of classes whose objects may hold a cell's settings, such as ``argparse.Namespace``."""


@dataclass(frozen=True)
class NotebookCode:
    """What a cell, and the functions and classes defined in the notebook, contain.

    Attributes:
        names: variables and attributes that the code uses.
        numbers: constants in the code, and values of its variables.
        divides_by_multiple: whether it divides by a multiple of a batch size.
        scales_by_size: whether it multiplies or divides a tensor by a batch size.
        reads_gradients: whether it reads ``x.grad`` for an ``x`` that is not a parameter.
    """

    names: set[str]
    numbers: set[float]
    divides_by_multiple: bool = False
    scales_by_size: bool = False
    reads_gradients: bool = False

    @classmethod
    def from_cell(cls, cell: str, namespace: Mapping[str, Any]) -> NotebookCode:
        """Analyze ``cell`` and the objects in ``namespace`` that were defined in the notebook."""
        try:
            codes = [compile(cell, "<cell>", "exec", dont_inherit=True)]
        except SyntaxError:  # the cell uses magics and is not analyzed
            codes = []
        own = [v for v in namespace.values() if getattr(v, "__module__", "") == "__main__"]
        functions = [
            member
            for value in own
            for member in (vars(value).values() if isinstance(value, type) else [value])
            if isinstance(member, FunctionType)
        ]
        assigned = assigned_names(cell)
        parts = list(_with_nested([*codes, *(function.__code__ for function in functions)]))
        names = {name for code in parts for name in code.co_names}
        values = [value for code in parts for value in (*code.co_consts, *_small_ints(code))]
        values += [v for f in functions for v in (f.__defaults__ or (), (f.__kwdefaults__ or {}))]
        used = [namespace.get(name) for name in names - assigned]
        values += [*used, *(_settings_of(each) for each in used)]
        numbers = {
            float(v) for v in _flatten(values) if isinstance(v, int | float) and v is not True
        }
        scales = cell_scales_by_size(cell) or any(map(function_scales_by_size, functions))
        divides = cell_divides_by_multiple(cell) or any(
            map(function_divides_by_multiple, functions)
        )
        gradients = cell_reads_gradients(cell) or any(map(function_reads_gradients, functions))
        return cls(names, numbers, divides, scales, gradients)

    @classmethod
    def without_models(cls, cell: str, namespace: Mapping[str, Any]) -> NotebookCode:
        """Analyze the same without models: a ``chunk(3)`` in a model splits features, not samples.

        Other objects are represented by their classes.
        """
        kinds = type | FunctionType
        classes = {n: v if isinstance(v, kinds) else type(v) for n, v in namespace.items()}
        return cls.from_cell(cell, {n: v for n, v in classes.items() if not _is_model(v)})


def _small_ints(code: CodeType) -> list[Any]:
    """Return the small integers that Python 3.14 encodes in the instructions themselves."""
    if sys.version_info < (3, 14):
        return []
    return [each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_SMALL_INT"]


def _settings_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that may hold settings."""
    found = getattr(value, "__dict__", {}) if type(value).__module__ in SETTINGS_MODULES else {}
    return found if isinstance(found, dict) else {}


def _flatten(values: Iterable[Any]) -> Iterator[Any]:
    """Yield ``values``, and the items of those that are tuples, frozen sets or dicts."""
    for value in values:
        if isinstance(value, tuple | frozenset):
            yield from value
        elif isinstance(value, dict):
            yield from list(value.values())
        else:
            yield value


def _with_nested(codes: Iterable[CodeType]) -> Iterator[CodeType]:
    """Yield code objects and those nested in them."""
    for code in codes:
        yield code
        yield from _with_nested(part for part in code.co_consts if isinstance(part, CodeType))


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.nn.Module)
