"""The strategies ``fsdp`` and ``zero2``, which use FSDP2's ``fully_shard``.

Parameters, gradients and optimizer states are sharded by rows.  The cell keeps its own objects,
which look like full tensors (``full_tensor_view``).  Parameters that FSDP2 cannot shard are
replicated, and their gradients are averaged as under ``ddp``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from nbmgpu.strategies import profiles
from nbmgpu.strategies.base import Backward, RankContext, Strategy, Unit
from nbmgpu.strategies.collective_pickle import CollectivePickle
from nbmgpu.strategies.mesh import DP
from nbmgpu.strategies.profiles import Profile
from nbmgpu.strategies.replication import RunningStatistics, broadcast_unless_equal
from nbmgpu.strategies.unit_reducers import UnitReducers

from . import view_operations  # noqa: F401 - sets how full tensor views run operations
from .call_order import BACKWARD, END_OF_CELL
from .fsdp_param import FSDPParamState
from .full_tensor_view import FullTensorView, ShardedParameter
from .sharded_steps import LocalStep, elementwise_state_names
from .unshard import restore_after_failure, unshard_all
from .view_attributes import graph_tensors
from .wrap_policy import sharding_plans
from .wrapper import FSDPWrapper

FULL_STEPS = (
    "{name} does not update each element of a parameter independently, so it steps on "
    "full parameters, gathered for it, and its states are replicated on every rank. "
    "Under ddp it would do the same with less communication."
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


class FullyShardedDataParallel(Strategy):
    """Sharded parameters, gradients and optimizer states: ZeRO stage 3."""

    profile: ClassVar[Profile] = profiles.FSDP
    shards_state: ClassVar[bool] = True
    weighs_losses: ClassVar[bool] = True
    reshards: ClassVar[bool] = True

    def __init__(self, context: RankContext) -> None:
        """Start without units."""
        super().__init__(context)
        self._wrapper: FSDPWrapper | None = None
        self._units: list[Unit] = []
        # Buckets are reduced at the end: FSDP2 issues its own collectives in between.
        self._reducers = UnitReducers(overlap=False)
        self._statistics: list[RunningStatistics] = []
        self._steps: WeakKeyDictionary[Optimizer, LocalStep | None] = WeakKeyDictionary()
        self._frozen: list[bool] = []
        self._shards_later = False
        self._finished = False

    @property
    def wrapper(self) -> FSDPWrapper:
        """The sharded modules."""
        if self._wrapper is None:
            mesh = self.mesh[DP]
            self._wrapper = FSDPWrapper(mesh, self.options, self.reshards, self.profile.name)
        return self._wrapper

    def prepare(self, units: list[Unit]) -> None:
        """Broadcast rank 0's values, and shard modules that are not sharded yet.

        Raises:
            StrategyError: ``--fsdp-units`` names a class that no model contains.
        """
        for unit in units:
            fresh = [p for p in unit.parameters() if not isinstance(p, ShardedParameter)]
            broadcast_unless_equal([*fresh, *unit.buffers()])
        self._units = units
        self._shard()
        self._record_units()

    def _shard(self) -> None:
        """Shard modules that are not, except those that await a backward pass."""
        modules = [m for unit in self._units for m in unit.modules if not _is_sharded(m)]
        awaiting = torch.tensor([_awaits_backward(m) for m in modules], dtype=torch.int32)
        if modules:
            dist.all_reduce(awaiting, dist.ReduceOp.MAX)
        self._shards_later = bool(awaiting.any())
        ready = [m for m, awaits in zip(modules, awaiting.tolist(), strict=True) if not awaits]
        for plan in sharding_plans(ready, torch.device(self.device), self.options.fsdp_units):
            self.wrapper.shard(plan)

    def _record_units(self) -> None:
        """Record running statistics, frozen parameters, and replicated parameters."""
        units = self._units
        self._statistics = [RunningStatistics(unit) for unit in units]
        self._frozen = [not s.parameter.requires_grad for s in self.param_states]
        self._create_reducers()

    @property
    def param_states(self) -> list[FSDPParamState]:
        """The states of all sharded parameters."""
        return self._wrapper.param_states if self._wrapper is not None else []

    def _create_reducers(self) -> None:
        """Create reducers for replicated parameters, as under ``ddp``."""
        replicated = [
            ReplicatedUnit([p for p in unit.parameters() if not isinstance(p, ShardedParameter)])
            for unit in self._units
        ]
        self._reducers.create(replicated)

    def check_backward(self) -> None:
        """Check that no rank is in a forward pass, whose all-gathers would wait for this rank."""
        if self.param_states:
            self.wrapper.call_order.check(BACKWARD)

    def begin_backward(self, backward: Backward) -> None:
        """Prepare for gradients, also of parameters that the cell has unfrozen meanwhile."""
        frozen = [not s.parameter.requires_grad for s in self.param_states]
        if frozen != self._frozen:
            self._frozen = frozen
            for group in dict.fromkeys(s.group for s in self.param_states):
                group._init_mp_dtypes()
        if self._reducers.changed():
            self._create_reducers()
        for param_state in self.param_states:
            param_state.has_grad = False
            param_state.had_no_grad = param_state.sharded_param().grad is None
        self._reducers.begin(backward)

    def end_backward(self, backward: Backward) -> None:
        """Reduce gradients that FSDP2 has not, and agree on which parameters have one."""
        for param_state in self.param_states:
            param_state.collect_unreduced()
        self._reducers.end()
        if self.param_states:
            self.wrapper.check_reductions()
            # On the CPU, where reading the result does not wait for the GPU.
            states = self.param_states
            flags = torch.tensor([[s.has_grad, s.unreduced_grad is not None] for s in states]).int()
            dist.all_reduce(flags, dist.ReduceOp.MAX)
            for state, (has_grad, has_unreduced) in zip(states, flags.tolist(), strict=True):
                if not has_grad and state.had_no_grad:
                    state.set_grad(None)  # FSDP2 has reduced zeros
                if has_unreduced:
                    state.reduce_unreduced()
        for statistics in self._statistics:
            statistics.average(backward.weight)

    def backward_inputs(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return the tensors that represent ``inputs`` in the autograd graph."""
        return [t for given in inputs for t in graph_tensors(given)]

    def step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        """Step on this rank's rows if the optimizer updates each element independently."""
        if self._shards_later:
            self._shard()
            self._record_units()
        sharded = any(
            isinstance(p, ShardedParameter) for g in optimizer.param_groups for p in g["params"]
        )
        steps = self._steps_of(optimizer) if sharded else None
        return plain() if steps is None else steps.step(optimizer, plain)

    def _steps_of(self, optimizer: Optimizer) -> LocalStep | None:
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
        """Clip by the norm of all gradients, to which each rank contributes its rows."""
        views: list[Any] = [p for p in parameters if isinstance(p, ShardedParameter)]
        sharded_params = [view._param_state.sharded_param() for view in views]
        rows = [p.grad.to_local() for p in sharded_params if p.grad is not None]
        if not rows:
            return plain(parameters)
        others = [p for p in parameters if not isinstance(p, FullTensorView)]
        norm_type = float(norm_type)
        device = torch.device(self.device)
        norms = torch.stack([torch.linalg.vector_norm(r, norm_type) for r in rows if r.numel()]
                            or [torch.zeros((), device=rows[0].device)]).to(device)  # fmt: skip
        infinite = norm_type == float("inf")
        power = norms.max() if infinite else (norms**norm_type).sum()
        dist.all_reduce(power, dist.ReduceOp.MAX if infinite else dist.ReduceOp.SUM)
        # One parameter, with their norm for its gradient, represents all sharded ones.
        proxy = nn.Parameter(torch.zeros(1, dtype=power.dtype, device=device))
        before = (power if infinite else power ** (1 / norm_type)).reshape(1)
        proxy.grad = before.clone()
        total = plain([proxy, *others])
        factor = torch.where(before > 0, proxy.grad / before, torch.ones_like(before))
        for part in rows:
            part.mul_(factor.to(part.device, part.dtype))
        return total

    def join_save(self, value: Any) -> None:
        """Gather the sharded tensors that rank 0 pickles, in the same order; collective."""
        GatheringPickle().dump(value)

    def finish(self) -> None:
        """Gather all objects of the cell; collective."""
        if self.param_states:
            self.wrapper.call_order.check(END_OF_CELL)
        self._finished = True
        optimizers = [o for unit in self._units for o in unit.optimizers]
        if self.param_states:
            unshard_all(self.param_states, optimizers, self.wrapper.freed_storage, self.rank)
        self._close()

    def release(self) -> None:
        """Remove all hooks; after a failure, restore the values from before the cell."""
        if not self._finished and self.param_states:
            optimizers = [o for unit in self._units for o in unit.optimizers]
            storage = self.wrapper.freed_storage
            restore_after_failure(self.param_states, optimizers, storage, self.notice)
        self._close()

    def _close(self) -> None:
        self._reducers.close()
        if self._wrapper is not None:
            self._wrapper.close()
            self._wrapper.param_states = []


def _is_sharded(module: nn.Module) -> bool:
    return any(isinstance(p, ShardedParameter) for p in module.parameters())


def _awaits_backward(module: nn.Module) -> bool:
    """Whether autograd holds a parameter for a backward pass that will need its values."""
    # One reference is the object's own, one may be its AccumulateGrad node.
    return any(_use_count(p) > 2 for p in module.parameters())


def _use_count(parameter: Any) -> int:
    return int(parameter._use_count())


class ZeroStage2(FullyShardedDataParallel):
    """Parameters stay unsharded from forward to backward: ZeRO stage 2."""

    profile: ClassVar[Profile] = profiles.ZERO2
    reshards: ClassVar[bool] = False
