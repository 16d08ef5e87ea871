"""A copy of Lightning, which is published as ``lightning.pytorch`` and ``pytorch_lightning``."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nbmgpu.patches import PatchStack
from nbmgpu.patches.lookup import resolve

TABLE_PACKAGE = "lightning.pytorch"
"""The copy that the patch table names."""


@dataclass(frozen=True)
class LightningLibrary:
    """A copy, by the name of its package, and the patches that are installed in it.

    Targets in the patch table name ``lightning.pytorch``; here they are named within the package.
    Many are private: Lightning's public hooks belong to the user, and hooks that were set there
    would be sent back to the notebook.
    """

    package: str
    patches: PatchStack = field(default_factory=PatchStack, compare=False)

    def of(self, module: str) -> Any:
        """Return a module of this copy, by its name within the package."""
        return importlib.import_module(f"{self.package}.{module}")

    def wrap(self, target: str, make: Callable[[Any], Any]) -> None:
        """Replace ``target`` by ``make(original)``, for the rest of this process."""

        def wrapped(original: Any) -> Any:
            made = make(original)
            if not isinstance(made, classmethod):
                functools.update_wrapper(made, original)
            return made

        self.patches.wrap(f"{TABLE_PACKAGE}.{target}", wrapped, self._owner(target))

    def replace(self, target: str, replacement: Any) -> None:
        """Replace ``target`` for the rest of this process."""
        self.patches.replace(f"{TABLE_PACKAGE}.{target}", replacement, self._owner(target))

    def _owner(self, target: str) -> Any:
        return resolve(f"{self.package}.{target.rpartition('.')[0]}")
