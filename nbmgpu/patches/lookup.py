"""Looks up targets of the patch table in the installed libraries."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

from .target import Kind, PatchTarget, older


@dataclass(frozen=True)
class Found:
    """What the installed version of a library has of an entry.

    Attributes:
        installed: version of the library, empty if it is not installed.
        present: whether the name exists.
    """

    entry: PatchTarget
    installed: str
    present: bool

    @property
    def state(self) -> str:
        """One word or two for the printed table."""
        if not self.installed:
            return "not installed"
        if self.entry.since and older(self.installed, self.entry.since):
            return f"new in {self.entry.since}"
        if self.entry.gone and not older(self.installed, self.entry.gone):
            return f"gone in {self.entry.gone}"
        return "present" if self.present else "missing"


def check(entry: PatchTarget) -> Found:
    """Look for ``entry`` in the installed library; imports the library."""
    installed = entry.library.installed
    return Found(entry, installed, bool(installed) and exists(entry))


def exists(entry: PatchTarget) -> bool:
    """Whether the installed library has the name of ``entry``; imports its module."""
    if entry.example is not None:
        return hasattr(entry.example(), entry.name)
    try:
        owner = owner_of(entry)
    except (ImportError, AttributeError):
        return False
    return entry.kind is Kind.ADDED or has(owner, entry.name) or _is_submodule(owner, entry.name)


def owner_of(entry: PatchTarget) -> Any:
    """Return the module or class that has the name of ``entry``.

    Raises:
        ImportError, AttributeError: there is none.
    """
    error: Exception | None = None
    for dotted in spellings(entry, entry.owner):
        try:
            return resolve(dotted)
        except (ImportError, AttributeError) as failed:
            error = failed
    raise ImportError(f"no {entry.owner}") from error


def spellings(entry: PatchTarget, dotted: str) -> Iterator[str]:
    """Yield ``dotted`` for each import name of the entry's library."""
    first, *others = entry.library.packages or ("",)
    yield dotted
    if first and dotted.startswith(first):
        for package in others:
            yield package + dotted[len(first) :]


def resolve(dotted: str) -> Any:
    """Import the module at the beginning of ``dotted`` and return what the whole of it names.

    Raises:
        ImportError, AttributeError: there is no such thing.
    """
    if dotted in sys.modules:
        return sys.modules[dotted]
    package, _, name = dotted.rpartition(".")
    if not package:
        return importlib.import_module(dotted)
    owner = resolve(package)
    if hasattr(owner, name):
        return getattr(owner, name)
    if isinstance(owner, type):
        raise AttributeError(f"no {dotted}")
    return importlib.import_module(dotted)


def has(owner: Any, name: str) -> bool:
    """Whether ``owner`` has ``name``, or is a class whose instances have it.

    Attributes that only instances have are found by their annotation, or by the code that
    assigns them in a method of the class.
    """
    if hasattr(owner, name):
        return True
    if not isinstance(owner, type):
        return False
    for cls in owner.__mro__:
        if name in vars(cls).get("__annotations__", {}):
            return True
        codes = (_code_of(member) for member in vars(cls).values())
        if any(code is not None and name in code.co_names for code in codes):
            return True
    return False


def _code_of(member: Any) -> CodeType | None:
    """Return the code of a method or property, below its decorators."""
    for name in ("func", "fget", "__func__"):
        member = getattr(member, name, member)
    while hasattr(member, "__wrapped__"):
        member = member.__wrapped__
    return getattr(member, "__code__", None)


def _is_submodule(owner: Any, name: str) -> bool:
    package = isinstance(owner, ModuleType) and hasattr(owner, "__path__")
    return package and find_spec(f"{owner.__name__}.{name}") is not None
