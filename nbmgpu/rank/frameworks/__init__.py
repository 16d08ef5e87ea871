"""Patches of training libraries: they train as on one device, and the ranks distribute that.

Each module, or package, in this one patches one library.  Its ``install(session)`` is called right
after the library has been imported, either by the cell or to unpickle the notebook's objects.
Nothing is imported for it: a library that a cell does not use costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nbmgpu.rank.after_import import AfterImport
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
