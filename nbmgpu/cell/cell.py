"""What a cell reads from the notebook and what it binds there, found from its source.

Nothing is run.  A name that exists nowhere is reported before any process starts, by an error
that is a NameError.

What the source does not show:

- Names made at run time, by ``exec``, ``globals()``, ``vars()`` or a magic such as ``%run``.
  A cell that uses one of them is not checked for unknown names.  What such code reads is found
  if it is written out as a string, as in ``eval("x + 1")``, and where all names are asked for,
  numbers and strings are; what it binds is not in ``writes``.
- ``global`` variables of functions that the cell calls but does not define.  They belong to
  the functions, and show when those are shipped.
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

from nbmgpu.errors import UnknownNameError, closest, compose

from .ipython_magics import names_of
from .name_analysis import NameReader, Site
from .source import CellSource, Transform

DYNAMIC = frozenset({"globals", "locals", "exec", "eval", "get_ipython"})
"""Functions through which a cell can use names that are not in its source."""

SETTINGS = (bool, int, float, str)
"""Types of what code looks for among all names: nanoGPT's configuration is such code."""

LAST: Site = (sys.maxsize, 0)
"""Where a name is read that stands nowhere."""

SHELL_OWN = frozenset({
    "In", "Out", "_ih", "_oh", "_dh", "__name__", "__doc__", "__package__", "__loader__",
    "__spec__", "__builtin__", "__builtins__", "__annotations__",
})  # fmt: skip
"""Names that every IPython shell has for itself; they are never taken from the notebook."""

SHELL_FUNCTIONS = frozenset({"get_ipython", "display", "exit", "quit", "open"})
"""Names that IPython provides; they are taken from the notebook only if it has rebound them."""

HISTORY = re.compile(r"_{1,3}|_i{1,3}|_i?\d+")
"""Earlier inputs and outputs, such as ``_`` and ``_12``."""


@dataclass(frozen=True)
class Cell:
    """A cell and its names.

    ``source`` is the cell as written, ``code`` the Python that IPython makes of it.

    ``reads`` are the notebook's names that may be read before the cell has bound them, in the
    order in which they appear; a builtin is among them only if the notebook shadows it.
    ``writes`` are the names that the cell may bind, except for those that come from
    ``star_imports``, the modules of ``from m import *``.  ``deletes`` are names that it may
    delete.

    ``needs_await`` tells whether there is an ``await`` outside any function.
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
    """Find what a cell reads from ``namespace`` and what it binds there.

    ``transform`` turns magics and shell lines into Python; the ``transform_cell`` of a live
    shell knows the user's own ones too.  Modules of star imports are imported.

    Raises:
        SyntaxError: the cell is not Python; line and text are those of the cell as written.
        UnknownNameError: it reads a name that is neither in the notebook nor in the cell.
            Names that it can do without, as under ``except NameError``, are left alone.
    """
    if transform is None:
        from IPython.core.inputtransformer2 import TransformerManager

        transform = TransformerManager().transform_cell
    written = CellSource(source, transform)
    reader = NameReader(written.parse)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python shows its SyntaxWarnings when the cell is run
        whole = written.parse(source)
        reader.read(whole)
        reads = dict(reader.reads)
        dynamic = any(
            name in reads and name not in reader.bound and not _is_own(name, namespace)
            for name in DYNAMIC
        )
        if dynamic:
            for name, site in _names_in_strings(reader):
                reads.setdefault(name, site)
        if reader.lists_names:
            for name in _settings(namespace):
                reads.setdefault(name, LAST)
    if not dynamic and not reader.opaque:
        _check(reader, namespace, written.lines)
    return Cell(
        source=source,
        code=whole.code,
        reads=tuple(n for n in sorted(reads, key=reads.__getitem__) if _is_own(n, namespace)),
        writes=tuple(reader.writes),
        deletes=tuple(reader.deletes),
        star_imports=tuple(reader.star_imports),
        needs_await=whole.needs_await,
    )


def _is_own(name: str, namespace: Mapping[str, object]) -> bool:
    """Tell whether a name is the notebook's own, not one that IPython put there."""
    if name not in namespace or name in SHELL_OWN:
        return False
    if name not in SHELL_FUNCTIONS:
        return True
    value = namespace[name]
    module = getattr(value, "__module__", None) or type(value).__module__
    return module.partition(".")[0] not in ("IPython", "ipykernel", "_sitebuiltins", "_io", "io")


def _settings(namespace: Mapping[str, object]) -> Iterator[str]:
    """Yield the names of plain values that are the notebook's own, and no history of inputs."""
    for name, value in namespace.items():
        if type(value) in SETTINGS and name not in SHELL_OWN and not HISTORY.fullmatch(name):
            yield name


def _names_in_strings(reader: NameReader) -> Iterator[tuple[str, Site]]:
    """Yield the notebook's names in texts that are Python, as ``eval`` would take them."""
    for text, settled, site in reader.strings:
        for name in names_of(text):
            if not reader.is_settled(name, settled):
                yield name, site


def _check(reader: NameReader, namespace: Mapping[str, object], lines: list[str]) -> None:
    """Raise UnknownNameError for the first name that exists nowhere."""
    known = reader.bound | SHELL_OWN | SHELL_FUNCTIONS | set(dir(builtins))
    unknown = {
        name: site
        for name, site in reader.demands.items()
        if name not in namespace and name not in known and not HISTORY.fullmatch(name)
    }
    if unknown:  # perhaps a function of the notebook will bind it
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
    near = closest(name, sorted(candidates))
    if near is None:
        raise UnknownNameError(compose(what, "Bind it here, or run the cell that binds it first"))
    instead = re.sub(rf"\b{re.escape(name)}\b", near, line)
    raise UnknownNameError(compose(what, f"The nearest name is {near!r}", instead))


def _bound_by_functions(namespace: Mapping[str, object]) -> Iterator[str]:
    """Yield the names that the notebook's functions bind by ``global`` when they are called."""
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
