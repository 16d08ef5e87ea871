"""Small values that a cell keeps, such as counts and metrics: numbers, strings, lengths, sums."""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import FrameType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nbmgpu.rank.files import saved_rows
from nbmgpu.rank.reporting import stdio
from nbmgpu.system.library_files import LIBRARY_FILE

Value = int | float | str
Values = dict[str, Value]

MOST_VALUES = 300
"""Values that are compared at a step."""

MOST_ITEMS = 64
"""Items of a dict whose values are looked at; of a longer one, only the length is."""

MOST_MODULES = 256
"""Modules of a model that are looked at."""

MOST_COLUMNS = 16
"""Columns of a table whose sums are compared."""

DEPTH = 3
"""Levels of objects and containers that are looked into."""

LONGEST = 200
"""Characters of a string that is compared."""

MOST_ELEMENTS = 4096
"""Elements of an array or tensor whose sum is compared, such as a confusion matrix."""

OTHERS = re.compile(r"\d*\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+(?:[:-]\d+)+", re.IGNORECASE)
"""Numbers in strings that are no counts: with decimals, times and dates."""

HOLDERS = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""What a function may have its local variables from, in the dict that Python updates if they are
read from outside; until Python 3.12, there is one dict for all."""

ITEM = ".item()"
"""How the expression for the number in a tensor ends."""

LAST, ROWS = "[-1]", ".shape[0]"
"""How those for the last item of a list, and its length if it is a tensor, end."""

NUMBERS = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64,
})  # fmt: skip
"""Types of elements that every device can add up and compare."""

PRINTED, SAVED = "print()", "torch.save()"
"""How the expressions for what was written since the step before begin."""

SHAPE = "  # of "
"""What comes before the shape behind one for an array: those of other shapes do not compare."""

NAMESPACES = SimpleNamespace, Namespace
"""Classes of objects that have nothing but attributes."""

NOTEBOOK = "__main__"
"""The module of what a notebook defines."""


class Length(int):
    """The length of the last tensor in a list."""


class CellValues:
    """The small values of the cell: in its namespace, and local ones of its functions."""

    def __init__(self) -> None:
        """Begin without a namespace; it is found at the first step."""
        self._cell: Mapping[str, Any] = {}
        self._lengths: dict[str, int] = {}

    def at_step(self) -> Values:
        """Return the values, also local ones of functions of the notebook that call this one."""
        frame: FrameType | None = sys._getframe(1)
        values: Values = {}
        while frame is not None:
            code = frame.f_code
            is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
            is_of_notebook = frame.f_globals.get("__name__") == NOTEBOOK
            if is_of_notebook and not is_function and frame.f_locals is frame.f_globals:
                self._cell = frame.f_globals
                break
            if is_of_notebook and not (is_function and HOLDERS.intersection(code.co_names)):
                names = frame.f_locals
                values |= small_values(names, f"{code.co_name}().")
                if is_function and isinstance(names, dict):
                    names.clear()  # a copy, until Python 3.12, which keeps tensors alive
            frame = frame.f_back
        return self._without_batches(values | small_values(self._cell) | _written())

    def at_end(self) -> Values:
        """Return those of the namespace, after the functions have returned."""
        return self._without_batches(small_values(self._cell) | _written())

    def _without_batches(self, values: Values) -> Values:
        """Leave out lengths of tensors, unless the list that has them has become longer."""
        before, self._lengths = (
            self._lengths,
            {path: value for path, value in values.items() if isinstance(value, int)},
        )

        def is_longer(path: str) -> bool:
            length = self._lengths.get(path, 0)
            return length > before.get(path, length)

        return {
            path: value
            for path, value in values.items()
            if not isinstance(value, Length) or is_longer(f"len({path.removesuffix(LAST + ROWS)})")
        }


def _written() -> Values:
    """Return the lines that were printed since the step before, and the rows that were saved."""
    rows = enumerate(saved_rows.take_saved_rows())
    values: Values = {f"{SAVED}[{number}]{ROWS}": count for number, count in rows}
    for number, line in enumerate(stdio.take_printed().splitlines()):
        values |= _small(f"{PRINTED}[{number}]", line, 0, set())
    return values


def small_values(names: Mapping[str, Any], prefix: str = "") -> Values:
    """Return numbers, strings, lengths and sums in a namespace, by the expression that each is."""
    values: Values = {}
    seen: set[int] = set()
    for name, value in [*names.items()]:
        if not name.startswith("_") and not isinstance(value, tuple) and value is not names:
            for path, small in _small(f"{prefix}{name}", value, 0, seen):
                values[path] = small
                if len(values) == MOST_VALUES:
                    return values
    return values


def _small(path: str, value: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Value]]:
    if isinstance(value, bool | np.bool_):
        return  # what is tested, as a rule of a shard
    if isinstance(value, int | np.integer):
        yield path, int(value)
    elif isinstance(value, float | np.floating):
        yield path, float(value)
    elif isinstance(value, str):
        if len(value) <= LONGEST:
            yield path, OTHERS.sub("", value)
    elif isinstance(value, Tensor | np.ndarray):
        yield from _of_array(path, value)
    elif depth < DEPTH and id(value) not in seen:
        seen.add(id(value))
        for name, item in _items(path, value):
            yield from _small(name, item, depth + 1, seen)


def _of_array(path: str, value: Tensor | np.ndarray[Any, Any]) -> Iterator[tuple[str, Value]]:
    if _has_numbers(value):
        if math.prod(value.shape) == 1:
            yield f"{path}{ITEM}", value.item()
        else:
            shape = f"{SHAPE}{tuple(value.shape)}"
            yield f"{path}.sum(){shape}", value.sum().item()
            yield f"{path}.max(){shape}", value.max().item()
    if path.endswith(LAST) and value.ndim:
        yield f"{path}{ROWS}", Length(len(value))


def _has_numbers(value: Tensor | np.ndarray[Any, Any]) -> bool:
    """Whether the elements of an array or tensor are few numbers, and no batch of a backward pass.

    Of one element, a truth value is what is tested, as a rule of a shard.
    """
    if isinstance(value, Tensor) and not _is_plain(value):
        return False
    count = math.prod(value.shape)
    if isinstance(value, np.ndarray):
        return 0 < count <= MOST_ELEMENTS and value.dtype.kind in ("iuf" if count == 1 else "biuf")
    is_kept = value.dtype is not torch.bool if count == 1 else not value.requires_grad
    return is_kept and value.dtype in NUMBERS and 0 < count <= MOST_ELEMENTS


def _is_plain(tensor: Tensor) -> bool:
    is_dense = tensor.layout is torch.strided and not tensor.is_nested
    return type(tensor) is Tensor and is_dense and not tensor.is_meta


def _items(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what to look at in an object, by the expression that it is."""
    kind = type(value)
    if kind in (list, deque):
        yield f"len({path})", len(value)
        if value:
            yield f"{path}{LAST}", value[-1]
    elif kind is tuple:
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(value[:4]))
    elif kind in (set, frozenset):
        yield f"len({path})", len(value)
    elif kind.__name__ in ("DataFrame", "Series"):
        yield f"len({path})", len(value)
        columns = islice(value.items(), MOST_COLUMNS) if value.ndim > 1 else [(None, value)]
        yield from (
            (path if name is None else f"{path}[{name!r}]", column.to_numpy())
            for name, column in columns
        )
    elif isinstance(value, dict):
        yield f"len({path})", len(value)
        items = [*value.items()] if len(value) <= MOST_ITEMS else []
        named = ((key, item) for key, item in items if isinstance(key, str | int))
        yield from ((f"{path}[{key!r}]", item) for key, item in named)
    elif isinstance(value, nn.Module):
        for name, module in islice(value.named_modules(), MOST_MODULES):
            if not name or _is_of_user(type(module)):
                yield from _attributes(f"{path}.{name}" if name else path, module)
    elif isinstance(value, FunctionType | MethodType) and _is_of_user(value):
        function = getattr(value, "__func__", value)
        yield from ((f"{path}.{name}", item) for name, item in vars(function).items())
        yield from _free_variables(path, function)
    elif keeps_values(kind):
        yield from _attributes(path, value)


def keeps_values(kind: type) -> bool:
    """Return whether objects of a class may keep what a cell computes: the user's, no models.

    So do namespaces, and scikit-learn's estimators.
    """
    is_of_user = _is_of_user(kind) and not issubclass(kind, nn.Module)
    return is_of_user or kind in NAMESPACES or hasattr(kind, "partial_fit")


def _is_of_user(owner: Any) -> bool:
    """Whether a class or function is of the notebook, or of a module beside it."""
    module = getattr(owner, "__module__", None)
    return module == NOTEBOOK or (isinstance(module, str) and _is_file_of_user(module))


@functools.cache
def _is_file_of_user(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return bool(file) and not LIBRARY_FILE.search(str(file))


def _attributes(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    names = vars(value) if hasattr(value, "__dict__") else {}
    yield from ((f"{path}.{name}", item) for name, item in names.items() if name[:1] != "_")
    if _is_of_user(type(value)):
        buffers = names.get("_buffers", {})
        yield from ((f"{path}.{name}", buffer) for name, buffer in buffers.items())


def _free_variables(path: str, function: Any) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has none yet
            yield f"{path}().{name}", cell.cell_contents
