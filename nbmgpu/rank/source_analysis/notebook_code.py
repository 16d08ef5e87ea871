"""The names and numbers of the notebook's code."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch

from .divisions import (
    assigned,
    by_size,
    divides_by_multiple,
    function_by_size,
    function_divides_by_multiple,
)
from .gradient_reads import function_reads_gradients, reads_gradients

SETTINGS = {"__main__", "argparse", "types"}
"""Modules of classes whose objects may hold the settings of a cell, such as a namespace."""


@dataclass(frozen=True)
class NotebookCode:
    """What stands in a cell, and in the functions and classes of the notebook.

    Attributes:
        names: of variables and attributes that it uses.
        numbers: in it, or behind its names.
        divides_by_multiple: whether it divides by several times the size of a batch.
        by_size: whether it multiplies or divides something else than a number by such a size.
        reads_gradients: whether it reads one of something that is no weight: ``x.grad``.
    """

    names: set[str]
    numbers: set[float]
    divides_by_multiple: bool = False
    by_size: bool = False
    reads_gradients: bool = False

    @classmethod
    def from_cell(cls, cell: str, namespace: Mapping[str, Any]) -> NotebookCode:
        """Look at ``cell``, and at what of ``namespace`` the notebook has made."""
        try:
            codes = [compile(cell, "<cell>", "exec", dont_inherit=True)]
        except SyntaxError:  # magics: of these nothing is known
            codes = []
        own = [v for v in namespace.values() if getattr(v, "__module__", "") == "__main__"]
        functions = [
            member
            for value in own
            for member in (vars(value).values() if isinstance(value, type) else [value])
            if isinstance(member, FunctionType)
        ]
        given = assigned(cell)
        parts = list(_parts([*codes, *(function.__code__ for function in functions)]))
        names = {name for code in parts for name in code.co_names}
        values = [value for code in parts for value in (*code.co_consts, *_small(code))]
        values += [v for f in functions for v in (f.__defaults__ or (), (f.__kwdefaults__ or {}))]
        used = [namespace.get(name) for name in names - given]
        values += [*used, *(_settings_of(each) for each in used)]
        numbers = {float(v) for v in _flat(values) if isinstance(v, int | float) and v is not True}
        sized = by_size(cell) or any(map(function_by_size, functions))
        multiple = divides_by_multiple(cell) or any(map(function_divides_by_multiple, functions))
        gradients = reads_gradients(cell) or any(map(function_reads_gradients, functions))
        return cls(names, numbers, multiple, sized, gradients)

    @classmethod
    def without_models(cls, cell: str, namespace: Mapping[str, Any]) -> NotebookCode:
        """Look at the same without models: one that has a chunk(3) cuts features, not samples.

        Other objects count as their classes.
        """
        kinds = type | FunctionType
        made = {n: v if isinstance(v, kinds) else type(v) for n, v in namespace.items()}
        return cls.from_cell(cell, {n: v for n, v in made.items() if not _is_model(v)})


def _small(code: CodeType) -> list[Any]:
    """Return the small numbers that Python 3.14 keeps in the instructions themselves."""
    if sys.version_info < (3, 14):
        return []
    return [each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_SMALL_INT"]


def _settings_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that may hold settings."""
    found = getattr(value, "__dict__", {}) if type(value).__module__ in SETTINGS else {}
    return found if isinstance(found, dict) else {}


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """Yield ``values``, and what is in those that are tuples or dicts."""
    for value in values:
        if isinstance(value, tuple | frozenset):
            yield from value
        elif isinstance(value, dict):
            yield from list(value.values())
        else:
            yield value


def _parts(codes: Iterable[CodeType]) -> Iterator[CodeType]:
    for code in codes:
        yield code
        yield from _parts(part for part in code.co_consts if isinstance(part, CodeType))


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.nn.Module)
