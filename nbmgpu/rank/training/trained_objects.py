"""The optimizers and modules that the cell trains, and how they get to the strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.rank.frameworks.own_distribution import distributes_by_itself, refuse_distributed
from nbmgpu.strategies import collectives

from . import user_hooks
from .optimizer_registry import training
from .sync_batchnorm import is_synchronised

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from nbmgpu.rank.loss.divisors import DivisorComparison
    from nbmgpu.rank.reporting.shard_report import ShardReport
    from nbmgpu.strategies.base import Strategy, Unit

    from .model_options import ModelOptions
    from .optimizer_registry import OptimizerRegistry

_LAZY = format_message(
    "The model has lazy modules, whose parameters get their shapes in a first forward pass",
    "Ranks share its parameters before that",
    "model(next(iter(loader))[0]) once, before the cell",
)


class TrainedObjects:
    """Passes new optimizers, with the modules that they train, to the strategy.

    Attributes:
        registry: every optimizer of this process.
        strategy: how ranks share the work.
        options: what flags change of a model: precision, checkpointing, batch norm.
        units: optimizers and modules that the strategy has been given.
        parameter_ids: ``id`` of their parameters.
        shard_report: reports what this rank stores of them.
    """

    def __init__(
        self,
        registry: OptimizerRegistry,
        strategy: Strategy,
        options: ModelOptions,
        divisors: DivisorComparison,
        shard_report: ShardReport,
        *,
        shards_data: bool,
        accumulates: bool,
    ) -> None:
        """Begin with nothing passed to ``strategy``.

        Args:
            registry, strategy, options, shard_report: see above.
            divisors: compared between ranks anew when there is a new model.
            shards_data: whether ranks train on shards of batches.
            accumulates: whether gradients accumulate over batches.
        """
        self.registry = registry
        self.strategy = strategy
        self.options = options
        self.units: list[Unit] = []
        self.parameter_ids: frozenset[int] = frozenset()
        self.shard_report = shard_report
        self._divisors = divisors
        self._shards_data = shards_data
        self._accumulates = accumulates
        self._on_inputs: Callable[[list[Any]], None] | None = None

    @property
    def weighs_losses(self) -> bool:
        """Whether losses are weighted before their backward pass, and not gradients after it."""
        # Statistics over the global batch mix the ranks' losses in their gradients.
        strategy, options = self.strategy, self.options
        return strategy.weighs_losses or self._accumulates or options.syncs_batch_norm

    def prepare_new(self) -> None:
        """Pass optimizers that are new, with their modules, to the strategy.

        Raises:
            StrategyError: they have parameters without a shape, or the cell has distributed them.
        """
        if not self.registry.changed:
            return
        doubled = self.strategy.drops_units and self.registry.has_doubled
        alive = self._forget_dead() if doubled else []
        self.units = self.registry.units()
        del alive  # its references are needed only until the registry is read
        parameters = [p for unit in self.units for p in unit.parameters()]
        if self._shards_data and any(map(is_lazy, parameters)):
            raise StrategyError(_LAZY)
        self.parameter_ids = frozenset(map(id, parameters))
        if not distributes_by_itself(self.strategy):
            refuse_distributed(self.units, self.strategy)
        self._divisors.restart(new_model=True)
        self.options.apply(self.units)
        self.strategy.prepare(self.units)
        self.options.apply_checkpointing(self.units)
        self.shard_report.update(self.units)
        self._watch_new_inputs()

    def _forget_dead(self) -> list[Optimizer]:
        """Forget models and optimizers of earlier folds or trials; return the optimizers left."""
        self.units = []
        self.strategy.drop_units()
        return self.registry.prune(self._keep_flags_of_all_ranks)

    def _keep_flags_of_all_ranks(self, flags: Tensor) -> None:
        """Set each flag, in place, to whether it is 1 on all ranks; shape (n,), each 0 or 1."""
        if self._shards_data:
            collectives.all_reduce(flags).wait()
            flags.copy_(flags == self.strategy.world_size)

    def is_training(self) -> bool:
        """Return whether gradients are enabled and some module is in training mode."""
        return training(self.units)

    def watch_inputs(self, on_inputs: Callable[[list[Any]], None]) -> None:
        """Call ``on_inputs`` with the inputs of every forward pass from now on."""
        self._on_inputs = on_inputs
        self._watch_new_inputs()

    def _watch_new_inputs(self) -> None:
        if self._on_inputs is not None:
            self.options.watch_inputs(self.units, self._on_inputs)

    def buffers(self) -> list[Tensor]:
        """Return the floating point buffers of the modules."""
        return [buffer for unit in self.units for buffer in unit.buffers()]

    def number_of(self, optimizer: Optimizer) -> int | None:
        """Return the index of ``optimizer`` in order of appearance; None for an engine's."""
        known = (o for unit in self.units for o in unit.optimizers)
        return next((i for i, other in enumerate(known) if other is optimizer), None)

    def has_batch_norm(self) -> bool:
        """Return whether a module in training mode normalizes over only the rank's shard."""
        modules = (m for unit in self.units for root in unit.modules for m in root.modules())
        layers = [m for m in modules if isinstance(m, _BatchNorm) and m.training]
        return not all(is_synchronised(m) for m in layers)

    def has_user_hooks(self) -> bool:
        """Return whether a parameter or module has a hook that is not the strategy's."""
        parameters = [p for unit in self.units for p in unit.parameters()]
        expected = self.strategy.count_hooks
        return user_hooks.on_modules(root for unit in self.units for root in unit.modules) or any(
            p._backward_hooks or len(p._post_accumulate_grad_hooks or ()) > expected(p)
            for p in parameters
        )

    def min_samples(self) -> int:
        """Return the fewest samples that a shard may have: batch statistics need two."""
        return 2 if self.has_batch_norm() else 1
