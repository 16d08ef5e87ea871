"""Patches of training libraries: they train as on one device, and the ranks distribute that.

Each module, or package, in this one patches one library.  Its ``install(session)`` is called right
after the library has been imported, either by the cell or to unpickle the notebook's objects.
Nothing is imported for it: a library that a cell does not use costs nothing.
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

from nbmgpu.trackers.registry import installers

if TYPE_CHECKING:
    from nbmgpu.rank.session import TrainingSession

PATCHED_BY = {
    "accelerate": "accelerate",
    "transformers.modeling_utils": "pretrained",
    "transformers.trainer": "huggingface",
    "transformers.utils.output_capturing": "output_capturing",
    "transformers.utils.notebook": "trainer_reports",
    "datasets": "datasets",
    "huggingface_hub": "datasets",
    "torchmetrics": "torchmetrics",
    "lightning.pytorch": "lightning",
    "pytorch_lightning": "lightning",
    "torch.distributed": "parallel_apis",
    "torch.distributed.pipelining": "parallel_apis",
    "deepspeed": "parallel_apis",
    "lightning.fabric": "parallel_apis",
    "lightning_fabric": "parallel_apis",
}
"""Modules of libraries, and the module of this package that patches each."""


def install(session: TrainingSession) -> None:
    """Patch the libraries that are imported already, and others when they are imported."""
    after: dict[str, Callable[[], None]] = {
        module: partial(_install, patched_by, session) for module, patched_by in PATCHED_BY.items()
    }
    after |= installers(session.trackers)
    for module in after.keys() & sys.modules.keys():
        after.pop(module)()
    sys.meta_path.insert(0, AfterImport(after))


def _install(patched_by: str, session: TrainingSession) -> None:
    importlib.import_module(f"{__name__}.{patched_by}").install(session)


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
