"""A DeepSpeed engine for one unit of the cell, which keeps its own objects.

DeepSpeed gets the user's modules, and an optimizer that delegates its steps to the cell's own.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.replication import RunningStatistics
from nbmgpu.strategies.trainable import Trainable

from .backward_pass import BackwardPass
from .call_order import DIFFERENT_STEPS, check_same_on_all_ranks
from .initialization import assign_normal_tensors, initialize_engine
from .mixed_precision import HALF_DTYPES, InputOutputCasts
from .optimizer_step import DelegatingOptimizer, OptimizerStep
from .original_modules import OriginalModules
from .parameter_gathering import ParameterGathering, reset_forward_stack, root_modules
from .parameter_proxies import (
    TENSOR_GRAD,
    ParameterProxy,
    PartitionedOptimizerState,
    PartitionedParameterProxy,
)
from .partition_layout import PartitionLayout
from .partitioned_state import PartitionedGradients, PartitionedStates

if TYPE_CHECKING:
    from torch import Tensor

    from nbmgpu.strategies.base import Unit


class EngineWrapper:
    """A ``DeepSpeedEngine`` and the partitioned state of its unit.

    Attributes:
        unit, stage: what is trained, and the ZeRO stage.
        optimizers: the cell's optimizers.
        signature: identifies the optimizers and parameters, see ``signature``.
        trained: the parameters that the optimizers update.
        originals: the user's modules and parameters, to be restored.
        model: the module that DeepSpeed wraps.
        layout, gradients, states: where the partitions are, and what is in them.
        gathering: gathers parameters of stage 3; None at other stages.
        exposes_local_gradients: whether ``.grad`` is this rank's slice, not the full gradient.
    """

    def __init__(self, unit: Unit, stage: int, config: dict[str, Any]) -> None:
        """Create the engine from DeepSpeed's ``config``; collective."""
        self.unit = unit
        self.stage = stage
        self.optimizers = list(unit.optimizers)
        self.signature = signature(unit)
        self.exposes_local_gradients = False
        self._engine_depth = 1
        self._is_detached = False
        self.trainable = Trainable(unit)
        self.trained = _trained_parameters(unit)
        self.originals = OriginalModules(unit.modules)
        dtype = next((half for key, half in HALF_DTYPES.items() if key in config), None)
        self._casts = InputOutputCasts(unit.modules, dtype)
        initial_grads = self._remove_gradients()
        self.backward_pass = BackwardPass(self)
        self.optimizer_step = OptimizerStep(self)
        self.gathering = ParameterGathering(self) if stage == 3 else None
        self._create_engine(config)
        self._casts.install()
        self.layout = PartitionLayout(self.engine.optimizer, stage, self.trained)
        self.gradients = PartitionedGradients(self)
        self.states = PartitionedStates(self)
        self.statistics = RunningStatistics(unit)
        self._install_proxies()
        self._restore_gradients(initial_grads)
        self._engine_depth = 0

    def _remove_gradients(self) -> dict[int, Tensor | None]:
        """Remove and return the parameters' gradients, by ``id``."""
        grads = {id(p): TENSOR_GRAD.__get__(p) for p in self.trained}
        for parameter in self.trained:
            TENSOR_GRAD.__set__(parameter, None)
        return grads

    def _restore_gradients(self, grads: dict[int, Tensor | None]) -> None:
        for parameter in self.trained:
            if (grad := grads[id(parameter)]) is not None:
                self.gradients.set(parameter, grad)
        self.gradients.write_back()

    def _create_engine(self, config: dict[str, Any]) -> None:
        modules = self.unit.modules
        # In a container, DeepSpeed's timing hooks are not on the user's module.  Stage 3 uses them.
        is_single = self.stage == 3 and len(modules) == 1
        self.model = modules[0] if is_single else nn.ModuleList(modules)
        groups = [{"lr": 0.0, "params": list(self.trained)}]
        delegating = DelegatingOptimizer(self.optimizer_step, groups)
        self.engine = initialize_engine(self.model, delegating, config)
        if self.stage == 3:
            assign_normal_tensors(self.engine.optimizer._get_param_coordinator())
            root_modules.append(self.model)
        self.originals.record_additions()

    def _install_proxies(self) -> None:
        """Change the classes of the parameters, so that the cell sees full tensors."""
        for parameter in self.originals.parameters if self.stage == 3 else self.trained:
            proxy = PartitionedParameterProxy if self.stage == 3 else ParameterProxy
            parameter.__class__ = proxy
            parameter.engine_wrapper = self  # type: ignore[attr-defined]

    @property
    def in_engine(self) -> bool:
        """Whether the engine is working, so that proxies show its own view of the parameters."""
        return self._engine_depth > 0

    def enter_engine(self) -> None:
        """Let proxies show the engine's view, until ``exit_engine``."""
        self._engine_depth += 1

    def exit_engine(self) -> None:
        """Let proxies show the cell's view again."""
        self._engine_depth -= 1

    @contextlib.contextmanager
    def engine_scope(self) -> Iterator[None]:
        """Let proxies show the engine's view of the parameters."""
        self.enter_engine()
        try:
            yield
        finally:
            self.exit_engine()

    @property
    def awaits_backward(self) -> bool:
        """Whether a forward pass of stage 3 has run whose backward pass has not."""
        return self.gathering is not None and self.gathering.awaits_backward

    def original_dtype(self, parameter: nn.Parameter) -> torch.dtype:
        """Return the dtype that the parameter has in the cell."""
        return self.originals.by_parameter[id(parameter)].dtype

    def check_call(self, number: int) -> None:
        """Check, under stage 3, that all ranks make the call ``number`` now; collective."""
        if self.stage == 3:
            check_same_on_all_ranks(number, DIFFERENT_STEPS)

    def check_copy(self) -> None:
        """Refuse to copy or pickle a module whose parameters are partitioned.

        Raises:
            StrategyError: the stage is 3, and the copy is the cell's.
        """
        if self.stage == 3 and not self.in_engine:
            what = "Under stage 3 of DeepSpeed a model that trains cannot be copied or pickled"
            allowed = (
                "Its parameters are partitioned over the ranks; model.state_dict() gathers them"
            )
            instead = "%%mgpu --strategy deepspeed_stage_2"
            raise StrategyError(format_message(what, allowed, instead))

    def write_back_weights(self) -> None:
        """Copy weights that the cell has changed into the fp32 master weights."""
        if self.gathering is not None:
            self.gathering.partition()
        else:
            self._copy_rebound_data()
        with self.engine_scope(), torch.no_grad():
            partitions = zip(
                self.layout.fp32_partitions, self.layout.model_partitions(), strict=True
            )
            for master, model in partitions:
                if master.data_ptr() == model.data_ptr():
                    continue
                if master.dtype == model.dtype:
                    master.copy_(model)
                else:  # keep the digits of masters whose half-precision copy is unchanged
                    differs = master.to(model.dtype).to(model.device) != model
                    changed = differs.to(master.device)
                    master.copy_(torch.where(changed, model.to(master), master))

    def _copy_rebound_data(self) -> None:
        """Copy parameters whose ``.data`` the cell has replaced into DeepSpeed's flat buffer."""
        optimizer = self.engine.optimizer
        for number, flat in enumerate(optimizer.bit16_groups_flat):
            members = optimizer.round_robin_bit16_groups[number]
            offsets = optimizer.round_robin_bit16_offsets[number]
            for parameter, offset in zip(members, offsets, strict=True):
                shape = self.layout.shapes[id(parameter)]
                view = flat.narrow(0, offset, shape.numel()).view(shape)
                if parameter.data.data_ptr() != view.data_ptr():
                    view.copy_(parameter.data)
                    parameter.data = view

    def finish(self) -> None:
        """Gather weights, gradients and states into the user's objects; collective."""
        self.gradients.write_back()
        self.write_back_weights()
        states = [
            o.state if not isinstance(o.state, PartitionedOptimizerState) or o.state.is_gathered
            else self.states.gather_in_place(i)
            for i, o in enumerate(self.optimizers)
        ]  # fmt: skip
        with self.engine_scope():
            weights = self._gather_weights()
            grads = {
                id(p): self.gradients.full(p)
                for p in self.trained
                if id(p) in self.gradients.present
            }
        self._detach(weights)
        for parameter in self.trained:
            if (grad := grads.get(id(parameter))) is not None:
                parameter.grad = grad.to(parameter)
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.state = collections.defaultdict(dict, dict(state.items()))

    def _gather_weights(self) -> dict[int, Tensor]:
        """Return the full weights, by ``id``: the fp32 master weights where there are any."""
        weights = {}
        for parameter in self.trained:
            own_slice = self.layout.slices[id(parameter)]
            local = None
            if own_slice is not None:
                local = own_slice.of_partition(self.layout.fp32_partitions[own_slice.partition])
            full = self.layout.gather(parameter, local, torch.float32)
            weights[id(parameter)] = full.to(self.original_dtype(parameter))
        if self.gathering is not None:
            self.gathering.gather()
            for parameter in self.originals.parameters:
                if parameter.dtype == self.original_dtype(parameter):
                    weights.setdefault(id(parameter), parameter.data.clone())
            for parameter in self.originals.parameters:
                parameter.ds_active_sub_modules.clear()  # type: ignore[attr-defined]
        return weights

    def abandon(self) -> None:
        """Restore the user's objects without collectives, after a failure on any rank."""
        if self._is_detached:
            return
        self.enter_engine()
        weights = {} if self.stage == 3 else {id(p): p.data.clone() for p in self.trained}
        self._detach(weights)
        for optimizer in self.optimizers:
            if isinstance(optimizer.state, PartitionedOptimizerState):
                optimizer.state = collections.defaultdict(dict)

    def _detach(self, weights: dict[int, Tensor]) -> None:
        """Remove the engine from the user's objects; parameters get ``weights``, by ``id``."""
        self.enter_engine()
        self._is_detached = True
        gathering_hooks = self.gathering.hooks if self.gathering is not None else []
        for hook in (*self.backward_pass.hooks, *gathering_hooks):
            hook.remove()
        self.engine.destroy()
        if self.stage == 3:
            root_modules[:] = [m for m in root_modules if m is not self.model]
            reset_forward_stack()
        self.originals.restore(weights)
        self._casts.remove()


def _trained_parameters(unit: Unit) -> list[nn.Parameter]:
    """Return the parameters with elements that the optimizers of ``unit`` update, each once."""
    groups = (group for optimizer in unit.optimizers for group in optimizer.param_groups)
    found: dict[int, nn.Parameter] = {
        id(p): p for group in groups for p in group["params"] if p.requires_grad and p.numel()
    }
    return list(found.values())


def signature(unit: Unit) -> list[Any]:
    """Return a value that identifies the optimizers of ``unit`` and their parameters."""
    return [
        (id(o), [[id(p) for p in group["params"]] for group in o.param_groups])
        for o in unit.optimizers
    ]
