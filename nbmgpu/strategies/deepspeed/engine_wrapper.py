"""A DeepSpeed engine for one unit of the cell, which keeps its own objects.

DeepSpeed gets the user's modules, and an optimizer that delegates its steps to the cell's own.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from nbmgpu.strategies.half_precision import HALF_DTYPES
from nbmgpu.strategies.replication import RunningStatistics

from .backward_pass import BackwardPass
from .call_order import DIFFERENT_STEPS, END_OF_CELL, check_same_on_all_ranks
from .mixed_precision import InputOutputCasts
from .optimizer_step import DelegatingOptimizer, OptimizerStep
from .original_modules import OriginalModules
from .parameter_gathering import ParameterGathering
from .parameter_proxies import (
    TENSOR_GRAD,
    ParameterProxy,
    PartitionedOptimizerState,
    PartitionedParameterProxy,
)
from .partition_layout import PartitionLayout
from .partitioned_state import PartitionedGradients, PartitionedStates
from .partitioned_weights import PartitionedWeights
from .trained_unit import TrainedUnit
from .zero_engine import ZeroEngine

if TYPE_CHECKING:
    from torch import Tensor

    from nbmgpu.strategies.base import Unit


class EngineWrapper:
    """A ``DeepSpeedEngine`` and the partitioned state of its unit.

    Attributes:
        trained: the unit, with the optimizers and parameters that the engine trains.
        engine: the engine, and whether it is running.
        originals: the user's modules and parameters, to be restored.
        casts: casts inputs and outputs of the modules in half precision.
        gathering: gathers parameters of stage 3; None at other stages.
        backward_pass, optimizer_step: run the engine.
        layout: where the parameters are in the partitions.
        weights, gradients, states: what is in the partitions.
        statistics: the running statistics of the unit.
    """

    def __init__(self, unit: Unit, stage: int, config: dict[str, Any]) -> None:
        """Create the engine from DeepSpeed's ``config``; collective."""
        self.trained = TrainedUnit(unit)
        self.engine = ZeroEngine(unit.modules, stage)
        self.originals = OriginalModules(unit.modules)
        dtype = next((half for key, half in HALF_DTYPES.items() if key in config), None)
        self.casts = InputOutputCasts(unit.modules, dtype)
        initial_grads = self._remove_gradients()
        self.backward_pass = BackwardPass(self)
        self.optimizer_step = OptimizerStep(self)
        self.gathering: ParameterGathering | None = None
        if stage == 3:
            self.gathering = ParameterGathering(self.engine, self.originals, unit.modules)
        self._initialize_engine(config)
        self.layout = PartitionLayout(self.engine.optimizer, stage, self.trained.parameters)
        self.weights = PartitionedWeights(self.engine, self.layout, self.originals, self.gathering)
        self.gradients = PartitionedGradients(self.engine, self.layout, self.originals)
        self.states = PartitionedStates(self.engine, self.layout, self.trained.optimizers)
        self.statistics = RunningStatistics(unit)
        self._install_proxies()
        self._restore_gradients(initial_grads)
        self.engine.exit()

    def _remove_gradients(self) -> dict[int, Tensor | None]:
        """Remove and return the parameters' gradients, by ``id``."""
        grads = {id(p): TENSOR_GRAD.__get__(p) for p in self.trained.parameters}
        for parameter in self.trained.parameters:
            TENSOR_GRAD.__set__(parameter, None)
        return grads

    def _restore_gradients(self, grads: dict[int, Tensor | None]) -> None:
        for parameter in self.trained.parameters:
            if (grad := grads[id(parameter)]) is not None:
                self.gradients.set(parameter, grad)
        self.gradients.write_back()

    def _initialize_engine(self, config: dict[str, Any]) -> None:
        groups = [{"lr": 0.0, "params": list(self.trained.parameters)}]
        self.engine.initialize(DelegatingOptimizer(self.optimizer_step, groups), config)
        self.originals.record_additions()
        self.casts.install()

    def _install_proxies(self) -> None:
        """Change the classes of the parameters, so that the cell sees full tensors."""
        is_stage_3 = self.engine.stage == 3
        proxy = PartitionedParameterProxy if is_stage_3 else ParameterProxy
        for parameter in self.originals.parameters if is_stage_3 else self.trained.parameters:
            parameter.__class__ = proxy
            parameter.engine_wrapper = self  # type: ignore[attr-defined]

    @property
    def awaits_backward(self) -> bool:
        """Whether a forward pass of stage 3 has run whose backward pass has not."""
        return self.gathering is not None and self.gathering.awaits_backward

    def check_call(self, number: int) -> None:
        """Check, under stage 3, that all ranks make the call ``number`` now; collective."""
        if self.engine.stage == 3:
            check_same_on_all_ranks(number, DIFFERENT_STEPS, wait=number == END_OF_CELL)

    def finish(self) -> None:
        """Gather weights, gradients and states into the user's objects; collective."""
        self.gradients.write_back()
        self.weights.write_back()
        states = [
            o.state if not isinstance(o.state, PartitionedOptimizerState) or o.state.is_gathered
            else self.states.gather_in_place(i)
            for i, o in enumerate(self.trained.optimizers)
        ]  # fmt: skip
        present = self.gradients.present
        with self.engine.running():
            weights = self.weights.gather()
            grads = {
                id(p): self.gradients.full(p) for p in self.trained.parameters if id(p) in present
            }
        self._detach(weights)
        for parameter in self.trained.parameters:
            if (grad := grads.get(id(parameter))) is not None:
                parameter.grad = grad.to(parameter)
        for optimizer, state in zip(self.trained.optimizers, states, strict=True):
            optimizer.state = collections.defaultdict(dict, dict(state.items()))

    def abandon(self) -> None:
        """Restore the user's objects without collectives, after a failure on any rank."""
        if self.engine.is_destroyed:
            return
        self.engine.enter()
        weights = (
            {}
            if self.engine.stage == 3
            else {id(p): p.data.clone() for p in self.trained.parameters}
        )
        self._detach(weights)
        for optimizer in self.trained.optimizers:
            if isinstance(optimizer.state, PartitionedOptimizerState):
                optimizer.state = collections.defaultdict(dict)

    def _detach(self, weights: dict[int, Tensor]) -> None:
        """Remove the engine from the user's objects; parameters get ``weights``, by ``id``."""
        self.engine.enter()
        gathering_hooks = self.gathering.hooks if self.gathering is not None else []
        for hook in (*self.backward_pass.hooks, *gathering_hooks):
            hook.remove()
        self.engine.destroy()
        self.originals.restore(weights)
        self.casts.remove()
