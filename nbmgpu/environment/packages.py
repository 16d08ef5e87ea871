"""The installed packages that a cell uses, whose versions nodes of a cluster must have as well."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version

OWN = ("__main__", "cloudpickle", "nbmgpu", "torch")
"""Compared in any case, or of the notebook."""


def imported_in(code: str) -> set[str]:
    """Return the modules that Python code imports, by full name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def versions_of(modules: Iterable[str]) -> dict[str, str]:
    """Return the version of each distribution that one of ``modules`` belongs to, by its name.

    Modules of Python itself and those that are not installed, such as files beside the notebook,
    belong to none.  Neither do those in a namespace of several distributions, such as ``google``:
    nodes need not have all of them.
    """
    tops = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {*OWN}
    names = {name for top in tops if (name := _distribution(top))}
    return {name: installed_version(name) for name in sorted(names)}


@dataclass(frozen=True)
class Difference:
    """A package that another environment has in another version, or not at all.

    Attributes:
        name: of the distribution, or ``python``.
        found, wanted: its versions there and in the notebook; ``found`` is empty if it is missing.
    """

    name: str
    found: str
    wanted: str

    def __str__(self) -> str:
        """Return it in words: ``numpy 1.26.4 instead of 2.1.0``."""
        return f"{self.name} {self.found or 'missing'} instead of {self.wanted}"


def differences(wanted: Mapping[str, str]) -> list[Difference]:
    """Return how this environment differs from ``wanted``, which has versions by distribution."""
    found = {name: installed_version(name) for name in wanted}
    return [Difference(n, found[n], wanted[n]) for n in wanted if found[n] != wanted[n]]


def installed_version(name: str) -> str:
    """Return the version of a distribution without the build's own part; empty if there is none.

    torch 2.13.0+cpu and 2.13.0+cu130 exchange tensors.
    """
    return full_version(name).partition("+")[0]


def full_version(name: str) -> str:
    """Return the version of a distribution; empty if there is none.

    A folder that pip has left without metadata has None, or raises: ``FileNotFoundError`` if the
    package ``importlib_metadata`` 9.1, which takes over for the standard library, is imported.
    """
    try:
        found: str | None = version(name)
    except (PackageNotFoundError, KeyError, ValueError, FileNotFoundError):
        return ""
    return found or ""


def _distribution(module: str) -> str:
    """Return the distribution of a module; most have its name, and the search takes long."""
    if installed_version(module):
        return module
    found = set(_search().get(module, ()))
    return found.pop() if len(found) == 1 else ""


@functools.cache
def _search() -> Mapping[str, list[str]]:
    return packages_distributions()
