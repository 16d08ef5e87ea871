"""Options that change how modules compute, applied before the strategy takes them over.

In the order ``--sync-batchnorm``, ``--checkpointing``, ``--precision``, ``--compile``;
each module once, whenever it appears.  What the strategy does by itself is left to it.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.rank.reporting import notices
from nbmgpu.strategies.repeated_blocks import blocks

from .forward_hooks import ForwardTap
from .precision import Autocast, LossScale, refuse_scalers
from .sync_batchnorm import BatchNormTap

if TYPE_CHECKING:
    from nbmgpu.rank.loss.loss_graph import LossGraph
    from nbmgpu.rank.session import Session
    from nbmgpu.strategies.base import Unit

COMPILERS = ("g++", "clang++", "gcc", "cc")


class Shaping:
    """Gives the modules of a session what ``StrategyOptions`` asks for."""

    def __init__(self, session: Session) -> None:
        """Serve ``session``; nothing changes before ``apply``."""
        tuning, own = session.strategy.options, session.strategy.profile.handles
        self.session = session
        self.device = session.strategy.device
        self.syncs = tuning.sync_batchnorm and "sync_batchnorm" not in own and session.distributes
        self.checkpoints = tuning.checkpointing and "checkpointing" not in own
        self.precision = None if "precision" in own else tuning.precision
        self.compiles = tuning.compile and "compile" not in own
        self.scale = LossScale(self.precision == "fp16")
        self.forwards = ForwardTap()
        self._batch_norm: BatchNormTap | None = None
        self._seen: WeakSet[nn.Module] = WeakSet()
        self._watched: WeakSet[nn.Module] = WeakSet()
        self._compiled: WeakSet[nn.Module] = WeakSet()
        self._undo: list[Callable[[], None]] = []
        if self.scale.on:
            refuse_scalers()

    def apply(self, units: list[Unit]) -> None:
        """Shape the modules of ``units`` that are new; collective the first time.

        Raises:
            StrategyError: there is no compiler to compile with.
        """
        if self.syncs and self._batch_norm is None:
            self._batch_norm = BatchNormTap(self.session)
            self._batch_norm.install()
        for module in (module for unit in units for module in unit.modules):
            if module not in self._seen:
                self._seen.add(module)
                self._shape(module)

    def watch_inputs(self, units: list[Unit], meet: Callable[[list[Any]], None]) -> None:
        """Call ``meet`` with the arguments of every forward pass that may be trained on."""

        def around(call: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if torch.is_grad_enabled():
                meet([*args, *named.values()])
            return call(*args, **named)

        for module in (module for unit in units for module in unit.modules):
            if module not in self._watched:
                self._watched.add(module)
                self.forwards.add(module, around)

    def _shape(self, module: nn.Module) -> None:
        if self.checkpoints:
            self._checkpoint(module)
        if self.precision is not None:
            around = Autocast(self.precision, self.device, self.session.recorder)
            self.forwards.add(module, around)
        if self.compiles:
            self._compile(module)

    def _checkpoint(self, root: nn.Module) -> None:
        """Recompute the activations of blocks in the backward pass, instead of keeping them."""
        found = False
        inside: set[nn.Module] = set()
        for module in root.modules():
            if module in inside:
                continue
            if _checkpoints_itself(module):
                found = True
                inside.update(module.modules())
                self._undo.append(_enable_own(module))
        for block in blocks(root):
            if block not in inside:
                found = True
                self.forwards.add(block, _checkpointed(block))
        if not found:
            self.session.recorder.notice("no-blocks", notices.NO_BLOCKS)

    def _compile(self, root: nn.Module) -> None:
        if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), *COMPILERS) if name):
            what = "--compile needs a C++ compiler, and none of these is here"
            allowed = ", ".join(COMPILERS)
            raise StrategyError(format_message(what, allowed, "%%mgpu without --compile"))
        # A model of transformers computes its loss, too.  That stays outside: how a loss
        # averages is read from its graph, in which compiled code is one single node.
        body = getattr(root, "base_model", root)
        module = body if isinstance(body, nn.Module) else root
        if module._compiled_call_impl is None:  # else the notebook has compiled it
            module.compile()
            self._compiled.add(module)

    def check_loss(self, graph: LossGraph) -> None:
        """Refuse a loss that was computed in compiled code, where nobody sees how it averages.

        Raises:
            StrategyError: ranks have shares of a batch, and the loss of ``graph`` is such.
        """
        share = self.session.share
        cut = share is not None and share.is_partial
        if self._compiled and cut and any("Compiled" in node.name() for node in graph.nodes):
            what = "The model computes its loss itself, and --compile hides how it averages"
            allowed = "So ranks' losses cannot be weighed exactly"
            instead = "the loss computed in the cell from what the model returns"
            raise StrategyError(format_message(what, allowed, instead))

    def release(self) -> None:
        """Take everything off; the modules travel back to the notebook."""
        self.forwards.remove()
        if self._batch_norm is not None:
            self._batch_norm.remove()
        for module in self._compiled:
            module._compiled_call_impl = None
        for undo in self._undo:
            undo()
        self._undo.clear()


def _checkpointed(block: nn.Module) -> Any:
    here = weakref.ref(block)  # what stands around it is kept as long as it lives, and no longer

    def around(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        block = here()
        if block is None or not block.training or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return around


def _checkpoints_itself(module: nn.Module) -> bool:
    """Tell whether ``module`` is a model of transformers that knows how."""
    return bool(getattr(module, "supports_gradient_checkpointing", False)) and hasattr(
        module, "gradient_checkpointing_enable"
    )


def _enable_own(model: Any) -> Callable[[], None]:
    """Let a model of transformers checkpoint its layers; return what undoes that.

    It knows what must not be done twice, such as filling a cache of keys and values.
    """
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        return lambda: None
    # Version 5 has renamed both.
    kind = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    before = WeakKeyDictionary({module: set(vars(module)) for module in model.modules()})
    getattr(model, f"{kind}_checkpointing_enable")({"use_reentrant": False})
    hooked = any(
        name.startswith("_require_grads_hook") for name in vars(model).keys() - before[model]
    )

    here = weakref.ref(model)

    def undo() -> None:
        model = here()
        if model is None:  # the cell has dropped it
            return
        getattr(model, f"{kind}_checkpointing_disable")()
        if hooked:
            model.disable_input_require_grads()
        for module in model.modules():
            for name in vars(module).keys() - before.get(module, vars(module).keys()):
                delattr(module, name)

    return undo
