"""Collects the names and numbers that the notebook's code uses."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from .divisions import (
    assigned_names,
    cell_constants,
    cell_divides_by_multiple,
    cell_scales_by_size,
    function_constants,
    function_divides_by_multiple,
    function_scales_by_size,
    scaling_numbers,
)
from .gradient_reads import cell_reads_gradients, function_reads_gradients
from .used_functions import UsedFunctions, nested_codes

SETTINGS_MODULES = {"__main__", "argparse", "types"}
"""Modules of classes whose objects may hold a cell's settings, such as ``argparse.Namespace``."""


@dataclass(frozen=True)
class NotebookCode:
    """What a cell contains, and the functions and classes of the notebook and of modules beside it.

    Whether it divides or scales by sizes is also read in functions of packages that these refer to.

    Attributes:
        names: variables and attributes that the code uses.
        numbers: constants in the code, and values of its variables.
        constants: those by which it multiplies or divides.
        divides_by_multiple: whether it divides by a multiple of a batch size.
        scales_by_size: whether it multiplies or divides a tensor by a batch size.
        reads_gradients: whether it reads ``x.grad`` for an ``x`` that is not a parameter.
    """

    names: set[str]
    numbers: set[float]
    constants: frozenset[float] = frozenset()
    divides_by_multiple: bool = False
    scales_by_size: bool = False
    reads_gradients: bool = False

    @classmethod
    def from_cell(
        cls, cell: str, namespace: Mapping[str, Any], with_models: bool = True
    ) -> NotebookCode:
        """Analyze ``cell``, what ``namespace`` has from the notebook, and what these refer to."""
        try:
            codes = [compile(cell, "<cell>", "exec", dont_inherit=True)]
        except SyntaxError:  # the cell uses magics and is not analyzed
            codes = []
        used = UsedFunctions(with_models)
        used.add(v for v in namespace.values() if getattr(v, "__module__", "") == "__main__")
        used.add_named(codes, namespace)
        assigned = assigned_names(cell)
        of_cell = list(nested_codes(codes))
        of_functions = nested_codes(function.__code__ for function in used.own)
        names = {name for code in (*of_cell, *of_functions) for name in code.co_names}
        values = [value for code in of_cell for value in (*code.co_consts, *_small_ints(code))]
        # Functions have many numbers; those of ``__init__`` are widths of layers, or attributes.
        functions = [each for each in used.own if each.__name__ != "__init__"]
        values += [v for f in functions for v in (f.__defaults__ or (), (f.__kwdefaults__ or {}))]
        variables = [namespace.get(name) for name in names - assigned]
        values += [*variables, *(_settings_of(each) for each in variables)]
        numbers = {
            float(v) for v in _flatten(values) if isinstance(v, int | float) and v is not True
        }
        numbers.update(*map(scaling_numbers, functions))
        losses = [*used.own, *used.of_packages]
        scales = cell_scales_by_size(cell) or any(map(function_scales_by_size, losses))
        divides = cell_divides_by_multiple(cell) or any(map(function_divides_by_multiple, losses))
        gradients = cell_reads_gradients(cell) or any(map(function_reads_gradients, used.own))
        constants = cell_constants(cell, namespace).union(*map(function_constants, used.own))
        return cls(names, numbers, frozenset(constants), divides, scales, gradients)

    @classmethod
    def without_models(cls, cell: str, namespace: Mapping[str, Any]) -> NotebookCode:
        """Analyze the same without models: a ``chunk(3)`` in a model splits features, not samples.

        Other objects are represented by their classes.
        """
        kinds = type | FunctionType
        classes = {n: v if isinstance(v, kinds) else type(v) for n, v in namespace.items()}
        return cls.from_cell(cell, classes, with_models=False)


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
