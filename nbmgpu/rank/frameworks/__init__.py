"""Training libraries in a rank: they train as on one device, and the rank's taps distribute that.

Each room of this package knows one library and offers ``tap(session)``, which is called
right after a module of the library has been imported, be it for the notebook's objects or
by the cell.  Nothing is imported for it: a library that a cell does not use costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmgpu.rank.session import Session

ROOMS = {
    "accelerate": "accelerate",
    "transformers.modeling_utils": "pretrained",
    "transformers.trainer": "huggingface",
    "transformers.utils.notebook": "trainer_reports",
    "datasets": "datasets",
    "huggingface_hub": "datasets",
    "torchmetrics": "torchmetrics",
    "lightning.pytorch": "lightning",
    "pytorch_lightning": "lightning",
    "wandb": "wandb",
}
"""Modules, and the room of this package whose ``tap`` waits for each."""


def install(session: Session) -> None:
    """Tap the libraries that are imported already, and the others as soon as they are."""
    after: dict[str, Callable[[], None]] = {
        module: partial(_tap, room, session) for module, room in ROOMS.items()
    }
    for module in after.keys() & sys.modules.keys():
        after.pop(module)()
    sys.meta_path.insert(0, AfterImport(after))


def _tap(room: str, session: Session) -> None:
    importlib.import_module(f"{__name__}.{room}").tap(session)


class AfterImport(MetaPathFinder):
    """Calls a function when a module has just been imported, before anybody can use it."""

    def __init__(self, waiting: dict[str, Callable[[], None]]) -> None:
        """Wait for the modules named in ``waiting``, each once."""
        self.waiting = waiting
        self._finding = ""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module as everybody else does, and see to it that its import ends with a call.

        Many only ask whether there is such a module, and do not import what they have found.
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
