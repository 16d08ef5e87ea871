"""Finds which names a cell reads from the notebook and which it binds, from its source alone.

The cell is not executed.  A name that exists nowhere is reported before any process starts, with
an error that is also a NameError.

Limits of the static analysis:

- Names that are created at run time by ``exec``, ``globals()``, ``vars()`` or a magic such as
  ``%run``.  A cell that uses one of them is not checked for unknown names.  Names that such code
  reads are found if the code is a string literal, as in ``eval("x + 1")``.  If the cell
  enumerates all names, plain numbers and strings of the notebook count as read.  Names that such
  code binds are not in ``writes``.
- ``global`` variables of functions that the cell calls but does not define.  They are found when
  these functions are serialized.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType

from nbmgpu.errors import UnknownNameError, format_message

from .ipython_magics import names_in_expression
from .name_analysis import NameReader
from .name_suggestions import CONVENTIONAL_IMPORTS, nearest_name
from .name_usage import Location, NameUsage
from .source import CellSource, Transform

DYNAMIC_ACCESS = frozenset({"globals", "locals", "exec", "eval", "get_ipython"})
"""Functions through which a cell can use names that do not appear in its source."""

CONFIG_TYPES = (bool, int, float, str)
"""Types of variables that code looks for when it enumerates names, as nanoGPT's configurator."""

END_OF_CELL: Location = (sys.maxsize, 0)
"""Location of a name that is read without appearing in the source."""

IPYTHON_INTERNALS = frozenset({
    "In", "Out", "_ih", "_oh", "_dh", "__name__", "__doc__", "__package__", "__loader__",
    "__spec__", "__builtin__", "__builtins__", "__annotations__",
})  # fmt: skip
"""Names that every IPython shell defines for itself; they are never sent to ranks."""

IPYTHON_FUNCTIONS = frozenset({"get_ipython", "display", "exit", "quit", "open"})
"""Names that IPython provides; they are sent to ranks only if the notebook has rebound them."""

HISTORY = re.compile(r"_{1,3}|_i{1,3}|_i?\d+")
"""Names of earlier inputs and outputs, such as ``_`` and ``_12``."""


@dataclass(frozen=True)
class Cell:
    """A cell and the names that it uses.

    Attributes:
        source: the cell as written.
        code: the Python that IPython transforms it into.
        reads: names of the notebook that may be read before the cell has bound them, in order of
            appearance.  A builtin is among them only if the notebook shadows it.
        writes: names that the cell may bind, without those from ``star_imports``.
        deletes: names that the cell may delete.
        star_imports: the modules of ``from module import *``.
        needs_await: whether there is an ``await`` outside any function.
    """

    source: str
    code: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    deletes: tuple[str, ...]
    star_imports: tuple[str, ...]
    needs_await: bool


def read_cell(
    source: str, namespace: Mapping[str, object], transform: Transform | None = None
) -> Cell:
    """Find which names a cell reads from ``namespace`` and which it binds there.

    Modules of star imports are imported.

    Args:
        source: the cell as written.
        namespace: the notebook's namespace.
        transform: turns magics and shell lines into Python.  The ``transform_cell`` of a live
            shell also knows the magics that the user has defined.

    Raises:
        SyntaxError: the cell is not valid Python; line and text are those of the cell as written.
        UnknownNameError: the cell reads a name that neither the notebook nor the cell binds.
            Reads that may fail, as under ``except NameError``, are not reported.
    """
    if transform is None:
        from IPython.core.inputtransformer2 import TransformerManager

        transform = TransformerManager().transform_cell
    written = CellSource(source, transform)
    reader = NameReader(written.parse)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python shows its SyntaxWarnings when the cell is run
        transformed = written.parse(source)
        reader.read(transformed)
        names = reader.names
        reads = dict(names.reads)
        dynamic = any(
            name in reads and name not in names.bound and not _is_user_defined(name, namespace)
            for name in DYNAMIC_ACCESS
        )
        if dynamic:
            for name, location in _names_in_strings(reader):
                reads.setdefault(name, location)
        if names.enumerates_names:
            for name in _config_variables(namespace):
                reads.setdefault(name, END_OF_CELL)
    if not dynamic and not names.opaque:
        _check(names, namespace, written.lines)
    return Cell(
        source=source,
        code=transformed.code,
        reads=tuple(
            n for n in sorted(reads, key=reads.__getitem__) if _is_user_defined(n, namespace)
        ),
        writes=tuple(names.writes),
        deletes=tuple(names.deletes),
        star_imports=tuple(names.star_imports),
        needs_await=transformed.needs_await,
    )


def _is_user_defined(name: str, namespace: Mapping[str, object]) -> bool:
    """Return whether the user has bound a name in the notebook, rather than IPython."""
    if name not in namespace or name in IPYTHON_INTERNALS:
        return False
    if name not in IPYTHON_FUNCTIONS:
        return True
    return not is_of_ipython(namespace[name])


def is_of_ipython(value: object) -> bool:
    """Return whether the value of one of ``IPYTHON_FUNCTIONS`` is what IPython has put there."""
    module = getattr(value, "__module__", None) or type(value).__module__
    return module.partition(".")[0] in ("IPython", "ipykernel", "_sitebuiltins", "_io", "io")


def _config_variables(namespace: Mapping[str, object]) -> Iterator[str]:
    """Yield the names of the user's plain values, without the history of inputs and outputs."""
    for name, value in namespace.items():
        if (
            type(value) in CONFIG_TYPES
            and name not in IPYTHON_INTERNALS
            and not HISTORY.fullmatch(name)
        ):
            yield name


def _names_in_strings(reader: NameReader) -> Iterator[tuple[str, Location]]:
    """Yield the names in string literals that are valid expressions, as ``eval`` reads them."""
    for text, assigned, location in reader.names.strings:
        for name in names_in_expression(text):
            if not reader.is_assigned(name, assigned):
                yield name, location


def _check(names: NameUsage, namespace: Mapping[str, object], lines: list[str]) -> None:
    """Raise UnknownNameError for the first name that exists nowhere."""
    known = names.bound | IPYTHON_INTERNALS | IPYTHON_FUNCTIONS | set(dir(builtins))
    unknown = {
        name: location
        for name, location in names.required.items()
        if name not in namespace and name not in known and not HISTORY.fullmatch(name)
    }
    if unknown:  # a function of the notebook may bind it
        for name in _bound_by_functions(namespace):
            unknown.pop(name, None)
    if not unknown:
        return
    name = min(unknown, key=unknown.__getitem__)
    number = unknown[name][0]
    line = lines[number - 1].strip()
    what = (
        f"Line {number} of the cell, `{line}`, reads {name!r}, "
        "which is bound neither in the notebook nor in the cell"
    )
    candidates = {n for n in known.union(namespace) if name.startswith("_") or n[0] != "_"}
    near = nearest_name(name, candidates, names.attributes.get(name, ()))
    if statement := CONVENTIONAL_IMPORTS.get(name):
        raise UnknownNameError(format_message(what, "It is usually imported", statement))
    if near is None:
        raise UnknownNameError(
            format_message(what, "Bind it here, or run the cell that binds it first")
        )
    instead = re.sub(rf"\b{re.escape(name)}\b", near, line)
    raise UnknownNameError(format_message(what, f"The nearest name is {near!r}", instead))


def _bound_by_functions(namespace: Mapping[str, object]) -> Iterator[str]:
    """Yield the ``global`` names that functions of the notebook bind when they are called."""
    members = [
        member
        for value in list(namespace.values())
        for member in (value, *(vars(value).values() if isinstance(value, type) else ()))
    ]
    functions = [inspect.unwrap(member) for member in members if isinstance(member, FunctionType)]
    todo: list[CodeType] = [
        function.__code__ for function in functions if hasattr(function, "__code__")
    ]
    while todo:
        code = todo.pop()
        for step in dis.get_instructions(code):
            if step.opname == "STORE_GLOBAL":
                yield step.argval
        todo += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
