"""The base class of strategies that shard parameters, gradients and optimizer states."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from nbmgpu.strategies.base import RankContext, Strategy, Unit
from nbmgpu.strategies.collective_pickle import CollectivePickle
from nbmgpu.strategies.replication import broadcast_unless_equal
from nbmgpu.strategies.rnn_weights import keep_rnn_weights_in_place

from . import view_operations  # noqa: F401 - sets how full tensor views run operations
from .full_tensor_view import FullTensorView, ShardedParameter
from .gradient_norm import clip_sharded
from .host_parameters import HostParameters
from .local_step import LocalStep, elementwise_state_names
from .param_state import ParamState
from .parameter_storage import FreedStorage
from .replicated_values import ReplicatedValues
from .tensor_shard import ShardLayout
from .unshard import restore_after_failure, unshard_all
from .view_attributes import graph_tensors

FULL_STEPS = (
    "{name} does not update each element of a parameter independently, so it steps on "
    "full parameters, gathered for it, and its states are replicated on every rank. "
    "Under ddp it would do the same with less communication."
)


ON_HOST = (
    "The model, with its gradients and optimizer states, is too large for one GPU: it has come "
    "back to the notebook in the memory of the host."
)


class ReplicatedUnit(Unit):
    """Parameters that are replicated on every rank."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        """Hold ``parameters`` without modules, whose running statistics are averaged elsewhere."""
        super().__init__([], [])
        self._parameters = parameters

    def parameters(self) -> list[nn.Parameter]:
        """Return the replicated parameters."""
        return self._parameters


class GatheringPickle(CollectivePickle):
    """Pickles nothing, and takes part in gathering the sharded tensors that rank 0 pickles."""

    def __init__(self) -> None:
        """Start without tensors."""
        super().__init__()
        self._gathered: dict[int, Any] = {}

    def persistent_id(self, obj: Any) -> str | None:
        """Gather a sharded tensor, once; do not pickle any tensor."""
        if isinstance(obj, FullTensorView) and id(obj) not in self._gathered:
            self._gathered[id(obj)] = obj
            obj.__reduce_ex__(2)
        return super().persistent_id(obj)


class ShardedStrategy(Strategy):
    """Parameters of which each rank holds a part, and which look like full tensors to the cell.

    Attributes:
        freed_storage: the memory of their original data.
    """

    shards_state: ClassVar[bool] = True
    shards_parameters: ClassVar[bool] = True
    host_moves_to: ClassVar[str] = "cuda"
    """The type of device to which a module moves without its parameters, until it is split."""

    def __init__(self, context: RankContext) -> None:
        """Start without units."""
        super().__init__(context)
        keep_rnn_weights_in_place()
        FullTensorView.exclude_from_compilation()
        self.freed_storage = FreedStorage()
        self._units: list[Unit] = []
        self._steps: WeakKeyDictionary[Optimizer, LocalStep | None] = WeakKeyDictionary()
        self._shards_later = False
        self._finished = False
        self._replicated = ReplicatedValues()
        self._host = HostParameters(torch.device(self.device))
        if self.device.startswith(self.host_moves_to):
            self._host.install()

    @property
    @abstractmethod
    def param_states(self) -> Sequence[ParamState]:
        """All sharded parameters, in the same order on all ranks."""

    @property
    def shard_group(self) -> ProcessGroup | None:
        """The ranks that hold the parts of one tensor; None for all ranks."""
        return None

    @property
    def norm_groups(self) -> Sequence[ProcessGroup | None]:
        """The ranks that hold all parts, along each dimension of the mesh; None for all ranks."""
        return [self.shard_group]

    def counts_in_norm(self, param_state: ParamState) -> bool:
        """Whether no other rank along ``norm_groups`` counts the same part in a norm."""
        return True

    @abstractmethod
    def shard_modules(self, modules: list[nn.Module]) -> None:
        """Shard modules that are not sharded yet; collective.

        Raises:
            StrategyError: an option does not fit the modules.
        """

    @abstractmethod
    def record_units(self) -> None:
        """Record what ``prepare`` has been given, after modules were sharded."""

    @abstractmethod
    def close(self) -> None:
        """Remove hooks and patches."""

    def prepare(self, units: list[Unit]) -> None:
        """Broadcast rank 0's values, and shard modules that are not sharded yet."""
        for unit in units:
            self._host.take_back(unit.parameters())
            fresh = [p for p in unit.parameters() if not isinstance(p, ShardedParameter)]
            broadcast_unless_equal([*fresh, *unit.buffers()])
        self._units = units
        self._shard_ready()

    def _shard_ready(self) -> None:
        """Shard modules that are not, except those that await a backward pass."""
        modules = [m for unit in self._units for m in unit.modules if not _is_sharded(m)]
        awaiting = torch.tensor([_awaits_backward(m) for m in modules], dtype=torch.int32)
        if modules:
            dist.all_reduce(awaiting, dist.ReduceOp.MAX)
        self._shards_later = bool(awaiting.any())
        ready = [m for m, awaits in zip(modules, awaiting.tolist(), strict=True) if not awaits]
        self.shard_modules(ready)
        self._host.move(p for unit in self._units for p in unit.parameters())
        self._host.settle()
        for unit, replicated in zip(self._units, self.replicated_units(), strict=True):
            self._replicated.keep(replicated.parameters(), unit.optimizers)
        self.record_units()

    def replicated_units(self) -> list[Unit]:
        """Return the parameters of each unit that are not sharded."""
        return [
            ReplicatedUnit([p for p in unit.parameters() if not isinstance(p, ShardedParameter)])
            for unit in self._units
        ]

    def local_numel(self, parameter: Tensor) -> int:
        """Return the size of this rank's part, or of a whole parameter that is replicated."""
        if isinstance(parameter, ShardedParameter):
            return parameter._param_state.shard.local.numel()
        return parameter.numel()

    def backward_inputs(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return the tensors that represent ``inputs`` in the autograd graph."""
        return [t for given in inputs for t in graph_tensors(given)]

    def step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        """Step on this rank's parts if the optimizer updates each element independently."""
        if self._shards_later:
            self._shard_ready()
        steps = self._steps_of(optimizer)
        return plain() if steps is None else steps.step(optimizer, plain)

    def zero_grad(self, optimizer: Optimizer, plain: Callable[[], None]) -> None:
        """Clear the gradients of parts themselves: ``plain`` would ask for views of them first."""
        _, set_to_none = cast("functools.partial[None]", plain).args
        if not set_to_none:
            plain()
            return
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if isinstance(parameter, ShardedParameter):
                parameter._param_state.set_grad(None)
            else:
                parameter.grad = None

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load this rank's parts if the optimizer updates each element independently."""
        if (steps := self._steps_of(optimizer)) is None:
            super().load_optimizer_state(optimizer, state)
        else:
            steps.load(optimizer, state)

    def _steps_of(self, optimizer: Optimizer) -> LocalStep | None:
        """Return what steps on parts; None for whole steps, or where no parameter is sharded."""
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        if not any(isinstance(p, ShardedParameter) for p in parameters):
            return None
        if optimizer not in self._steps:
            keys = elementwise_state_names(optimizer)
            name = type(optimizer).__name__
            if keys is None:
                self.notice(f"whole-steps-{name}", FULL_STEPS.format(name=name))
            self._steps[optimizer] = None if keys is None else LocalStep(keys)
        return self._steps[optimizer]

    def clip_grad_norm(
        self,
        parameters: list[Tensor],
        max_norm: float,
        norm_type: float,
        plain: Callable[[list[Tensor]], Tensor],
    ) -> Tensor:
        """Clip by the norm of all gradients, to which each rank contributes its parts."""
        states = [p._param_state for p in parameters if isinstance(p, ShardedParameter)]
        parts = {id(s): grad for s in states if (grad := s.local_grad()) is not None}
        counted = [parts[id(s)] for s in states if id(s) in parts and self.counts_in_norm(s)]
        if not parts:
            return plain(parameters)
        others = [p for p in parameters if not isinstance(p, FullTensorView)]
        device = torch.device(self.device)
        return clip_sharded(
            [*parts.values()], counted, others, norm_type, device, self.norm_groups, plain
        )

    def gradient_part(self, parameter: Tensor) -> tuple[Tensor | None, int]:
        """Return this rank's rows, unless it holds a replica of another rank's."""
        if not isinstance(parameter, ShardedParameter):
            return super().gradient_part(parameter)
        state = parameter._param_state
        grad, layout = state.local_grad(), state.shard.layout
        if not isinstance(layout, ShardLayout) or layout.dim or not _has_rank_0(layout.group):
            return None, 0
        return grad, layout.start * layout.shape[1:].numel()

    def join_save(self, value: Any) -> None:
        """Gather the sharded tensors that rank 0 pickles, in the same order; collective."""
        GatheringPickle().dump(value)

    def finish(self) -> None:
        """Gather all objects of the cell; collective."""
        self._finished = True
        if self.param_states:
            optimizers, on_host = self._optimizers(), self._host.exceed(self.param_states)
            unshard_all(self.param_states, optimizers, self.freed_storage, self.rank, on_host)
            if on_host:
                self.notice("on-host", ON_HOST)
        self.close()

    def release(self) -> None:
        """Remove all hooks; after a failure, restore the values from before the cell."""
        if not self._finished and self.param_states:
            optimizers = self._optimizers()
            restore_after_failure(self.param_states, optimizers, self.freed_storage, self.notice)
            self._replicated.restore()
        self._replicated.drop()
        self._host.remove()
        self.close()

    def _optimizers(self) -> list[Optimizer]:
        return [optimizer for unit in self._units for optimizer in unit.optimizers]


def _is_sharded(module: nn.Module) -> bool:
    return any(isinstance(p, ShardedParameter) for p in module.parameters())


def _has_rank_0(group: ProcessGroup | None) -> bool:
    return group is None or 0 in dist.get_process_group_ranks(group)


def _awaits_backward(module: nn.Module) -> bool:
    """Whether autograd holds a parameter for a backward pass that will need its values."""
    # One reference is the object's own, one may be its AccumulateGrad node.
    return any(_use_count(p) > 2 for p in module.parameters())


def _use_count(parameter: Any) -> int:
    return int(parameter._use_count())
