"""Calls functions right after the import of modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def after_import(name: str, function: Callable[[], None]) -> None:
    """Call ``function`` after the import of module ``name``, or now if it is imported."""
    if name in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, AfterImport({name: function}))


class AfterImport(MetaPathFinder):
    """Calls a function right after a module has been imported, before it can be used."""

    def __init__(self, waiting: dict[str, Callable[[], None]]) -> None:
        """Call each of ``waiting`` once, after the import of the module it is listed under."""
        self.waiting = waiting
        self._finding = ""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module by the other finders, and let its loader end with the call.

        ``find_spec`` alone is no import: libraries use it to ask whether a module exists.
        """
        if name not in self.waiting or name == self._finding:
            return None
        self._finding = name
        try:
            spec = find_spec(name)  # by the other finders
        finally:
            self._finding = ""
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.waiting.pop(name, lambda: None)()

            loader.exec_module = exec_module
        return spec
