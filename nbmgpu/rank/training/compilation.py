"""``--compile``: modules run compiled by ``torch.compile``."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from typing import TYPE_CHECKING
from weakref import WeakSet

from torch import nn

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.outermost_calls import is_compiled

if TYPE_CHECKING:
    from nbmgpu.rank.loss.loss_graph import LossGraph
    from nbmgpu.rank.progress import TrainingProgress

COMPILERS = ("g++", "clang++", "gcc", "cc")


class Compilation:
    """Compiles modules in place, and restores them."""

    def __init__(self, progress: TrainingProgress) -> None:
        """Begin with no module compiled."""
        self._progress = progress
        self._compiled: WeakSet[nn.Module] = WeakSet()

    def apply(self, root: nn.Module) -> None:
        """Compile ``root``, unless the notebook has compiled it.

        Raises:
            StrategyError: there is no C++ compiler.
        """
        if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), *COMPILERS) if name):
            what = "--compile needs a C++ compiler, and none of these is here"
            allowed = ", ".join(COMPILERS)
            raise StrategyError(format_message(what, allowed, "%%mgpu without --compile"))
        # A model of transformers computes its loss, too.  That is not compiled: how a loss is
        # reduced is read from its autograd graph, in which compiled code is a single node.
        body = getattr(root, "base_model", root)
        module = body if isinstance(body, nn.Module) else root
        if module._compiled_call_impl is None:
            module.compile()
            self._compiled.add(module)

    def check_loss(self, graph: LossGraph) -> None:
        """Refuse a loss that was computed in compiled code, which hides its reduction.

        Raises:
            StrategyError: ranks have shards of a batch, and the loss of ``graph`` is such a loss.
        """
        if not self._compiled or not self._progress.has_part:
            return
        if any("Compiled" in node.name() for node in graph.nodes):
            what = "The model computes its loss itself, and --compile hides how it averages"
            allowed = "So ranks' losses cannot be weighed exactly"
            instead = "the loss computed in the cell from what the model returns"
            raise StrategyError(format_message(what, allowed, instead))

    def release(self) -> None:
        """Let modules run without compiled code again."""
        for module in self._compiled:
            module._compiled_call_impl = None


def has_compiled_modules() -> bool:
    """Return whether any module in this process runs code compiled by ``torch.compile``."""
    if "torch._dynamo" not in sys.modules:
        return False
    return any(is_compiled(x) for x in gc.get_objects() if issubclass(type(x), nn.Module))
