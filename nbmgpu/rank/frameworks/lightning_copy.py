"""One of the two copies of Lightning: ``lightning.pytorch`` and ``pytorch_lightning``."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Copy:
    """A copy, by the name of its package."""

    package: str

    def of(self, module: str) -> Any:
        """Return a module of this copy, by its name within the package."""
        return importlib.import_module(f"{self.package}.{module}")


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(original)`` in the place of ``owner.name``, for the rest of this process.

    Much of what is replaced is private to Lightning: its public hooks are the user's, and
    what is put there would come back to the notebook.
    """
    original = getattr(owner, name)
    made = make(original)
    if not isinstance(made, classmethod):
        functools.update_wrapper(made, original)
    setattr(owner, name, made)
