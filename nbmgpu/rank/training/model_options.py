"""Options that change how modules compute.

The order is ``--sync-batchnorm``, ``--precision``, ``--compile``, then the strategy, and
``--checkpointing``, which computes again what the strategy does in a block; each module once,
whenever it appears.  Options that the strategy implements itself are left to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import nn

from nbmgpu.rank.reporting import notices
from nbmgpu.strategies.forward_patch import ForwardPatch

from .activation_checkpointing import ActivationCheckpointing
from .compilation import Compilation
from .precision import Autocast, LossScale, refuse_scalers

if TYPE_CHECKING:
    from nbmgpu.rank.loss.loss_graph import LossGraph
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.reporting.recorder import Recorder
    from nbmgpu.strategies.base import Strategy, Unit

    from .sync_batchnorm import BatchNormPatch


class ModelOptions:
    """Applies ``StrategyOptions`` to the modules that a cell trains.

    Attributes:
        syncs_batch_norm: whether batch norm uses the statistics of the global batch.
        loss_scale: the scale of losses under fp16.
    """

    def __init__(
        self,
        strategy: Strategy,
        batch_norm: BatchNormPatch,
        progress: TrainingProgress,
        recorder: Recorder,
        shards_data: bool,
    ) -> None:
        """Read the options of ``strategy``; no module changes before ``apply``."""
        options, own = strategy.options, strategy.profile.options.handled
        syncs = options.sync_batchnorm and "sync_batchnorm" not in own
        self.syncs_batch_norm = syncs and shards_data
        self._precision = None if "precision" in own else options.precision
        self._device = strategy.device
        self._batch_norm = batch_norm
        self._recorder = recorder
        self._forward = ForwardPatch()
        checkpoints = options.checkpointing and "checkpointing" not in own
        self._checkpointing = ActivationCheckpointing(self._forward) if checkpoints else None
        compiles = options.compile and "compile" not in own
        self._compilation = Compilation(progress) if compiles else None
        self._applied: WeakSet[nn.Module] = WeakSet()
        self._checkpointed: WeakSet[nn.Module] = WeakSet()
        self._watched: WeakSet[nn.Module] = WeakSet()
        self.loss_scale = LossScale(self._precision == "fp16")
        if self.loss_scale.on:
            refuse_scalers()

    def apply(self, units: list[Unit]) -> None:
        """Apply options to modules of ``units`` that are new, before the strategy prepares them.

        Collective the first time.

        Raises:
            StrategyError: there is no compiler to compile with.
        """
        if self.syncs_batch_norm:
            self._batch_norm.install()
        for module in (module for unit in units for module in unit.modules):
            if module not in self._applied:
                self._applied.add(module)
                self._apply_to(module)

    def apply_checkpointing(self, units: list[Unit]) -> None:
        """Checkpoint blocks of new modules, after the strategy has prepared them."""
        if self._checkpointing is None:
            return
        for module in (module for unit in units for module in unit.modules):
            if module not in self._checkpointed:
                self._checkpointed.add(module)
                if not self._checkpointing.apply(module):
                    self._recorder.notice("no-checkpoint-blocks", notices.NO_CHECKPOINT_BLOCKS)

    def _apply_to(self, module: nn.Module) -> None:
        if self._precision is not None:
            self._forward.add(module, Autocast(self._precision, self._device, self._recorder))
        if self._compilation is not None:
            self._compilation.apply(module)

    def watch_inputs(self, units: list[Unit], on_inputs: Callable[[list[Any]], None]) -> None:
        """Call ``on_inputs`` with the arguments of every forward pass that may be trained on."""

        def wrapper(call: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if torch.is_grad_enabled():
                on_inputs([*args, *named.values()])
            return call(*args, **named)

        for module in (module for unit in units for module in unit.modules):
            if module not in self._watched:
                self._watched.add(module)
                self._forward.add(module, wrapper)

    def check_loss(self, graph: LossGraph) -> None:
        """Refuse a loss that was computed in compiled code; see ``Compilation.check_loss``."""
        if self._compilation is not None:
            self._compilation.check_loss(graph)

    def release(self) -> None:
        """Restore the modules: they are sent to the notebook."""
        self._forward.remove()
        self._batch_norm.remove()
        if self._compilation is not None:
            self._compilation.release()
        if self._checkpointing is not None:
            self._checkpointing.release()
