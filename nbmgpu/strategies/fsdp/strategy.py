"""``fsdp`` and ``zero2``: FSDP2 ``fully_shard`` in place.

Parameters, gradients and optimizer states are dealt out over the ranks by rows; the
cell's own objects stay where they are and look whole (``faces``).  What FSDP2 cannot
shard stays whole on every rank, and its gradients are averaged as under ``ddp``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer

from nbmgpu.strategies import profiles
from nbmgpu.strategies.base import Backward, RankContext, Strategy, Unit
from nbmgpu.strategies.collective_pickle import CollectivePickle
from nbmgpu.strategies.profiles import Profile
from nbmgpu.strategies.reducer import Reducer, reduce_all
from nbmgpu.strategies.replication import RunningStatistics, broadcast_unless_equal
from nbmgpu.strategies.trainable import Trainable

from .call_order import BACKWARD, END_OF_CELL
from .sharded_steps import LocalSteps, elementwise_states
from .sharded_tensors import Face, ShardedParameter, stand_ins
from .unshard import bring_home, put_back_unfinished
from .wrap_policy import plans
from .wrapper import Engine, Slot

WHOLE_STEPS = (
    "{name} does not update each element of a parameter by itself, so it steps on whole "
    "parameters, gathered for it, and its states are whole on every rank. "
    "Under ddp it would do the same with less communication."
)


class Rest(Unit):
    """Parameters that stay whole on every rank."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        """Hold ``parameters``, without their modules: statistics are another's business."""
        super().__init__([], [])
        self.kept = parameters

    def parameters(self) -> list[nn.Parameter]:
        """Return them."""
        return self.kept


class GatheringAttendance(CollectivePickle):
    """The same, gathering sharded tensors."""

    def __init__(self) -> None:
        """Have met none."""
        super().__init__()
        self.met: dict[int, Any] = {}

    def persistent_id(self, obj: Any) -> str | None:
        """Gather a sharded tensor, once; leave all tensors out."""
        if isinstance(obj, Face) and id(obj) not in self.met:
            self.met[id(obj)] = obj
            obj.__reduce_ex__(2)
        return super().persistent_id(obj)


class FullyShardedDataParallel(Strategy):
    """Sharded parameters, gradients and optimizer states: ZeRO stage 3."""

    profile: ClassVar[Profile] = profiles.FSDP
    shards_state: ClassVar[bool] = True
    weighs_losses: ClassVar[bool] = True
    reshards: ClassVar[bool] = True

    def __init__(self, context: RankContext) -> None:
        """Start without any unit."""
        super().__init__(context)
        self._engine: Engine | None = None
        self._units: list[Unit] = []
        self._reducers: list[Reducer] = []
        self._resting: list[Trainable] = []
        self._statistics: list[RunningStatistics] = []
        self._steps: WeakKeyDictionary[Optimizer, LocalSteps | None] = WeakKeyDictionary()
        self._frozen: list[bool] = []
        self._waits = False
        self._finished = False

    @property
    def engine(self) -> Engine:
        """FSDP2, over all ranks."""
        if self._engine is None:
            mesh = init_device_mesh(torch.device(self.device).type, (self.world_size,))
            self._engine = Engine(mesh, self.options, self.reshards, self.profile.name)
        return self._engine

    def prepare(self, units: list[Unit]) -> None:
        """Give all ranks rank 0's values, then shard what is not sharded yet.

        Raises:
            StrategyError: ``--fsdp-units`` names a class that is nowhere in the models.
        """
        for unit in units:
            fresh = [p for p in unit.parameters() if not isinstance(p, ShardedParameter)]
            broadcast_unless_equal([*fresh, *unit.buffers()])
        self._units = units
        self._shard()
        self._watch()

    def _shard(self) -> None:
        """Shard modules that are not, but for those whose forward pass is still to be undone."""
        modules = [m for unit in self._units for m in unit.modules if not _is_sharded(m)]
        waiting = torch.tensor([_is_under_way(m) for m in modules], dtype=torch.int32)
        if modules:
            dist.all_reduce(waiting, dist.ReduceOp.MAX)
        self._waits = bool(waiting.any())
        ready = [m for m, wait in zip(modules, waiting.tolist(), strict=True) if not wait]
        for plan in plans(ready, torch.device(self.device), self.options.fsdp_units):
            self.engine.shard(plan)

    def _watch(self) -> None:
        """Watch what is not FSDP2's: statistics, and parameters that stay whole."""
        units = self._units
        self._statistics = [RunningStatistics(unit) for unit in units]
        self._frozen = [not s.original.requires_grad for s in self.slots]
        self._hook_rest()

    @property
    def slots(self) -> list[Slot]:
        """All sharded parameters."""
        return self._engine.slots if self._engine is not None else []

    def _hook_rest(self) -> None:
        """Reduce as ``ddp`` does what is not sharded."""
        for reducer in self._reducers:
            reducer.close()
        rests = [
            Rest([p for p in unit.parameters() if not isinstance(p, ShardedParameter)])
            for unit in self._units
        ]
        trainable = [rest for rest in rests if rest.trains]
        # Buckets leave at the end: FSDP2's own collectives are under way in between.
        self._reducers = [Reducer(rest, overlap=False) for rest in trainable]
        self._resting = [Trainable(rest) for rest in rests if not rest.trains]

    def check_backward(self) -> None:
        """Check that no rank is in a forward pass, whose all-gathers would wait for this rank."""
        if self.slots:
            self.engine.call_order.check(BACKWARD)

    def begin_backward(self, backward: Backward) -> None:
        """Wait for gradients, also of parameters that the cell has unfrozen meanwhile."""
        frozen = [not s.original.requires_grad for s in self.slots]
        if frozen != self._frozen:
            self._frozen = frozen
            for group in dict.fromkeys(s.group for s in self.slots):
                group._init_mp_dtypes()
        watched = (*(reducer.trainable for reducer in self._reducers), *self._resting)
        if any(each.changed() for each in watched):
            self._hook_rest()
        for slot in self.slots:
            slot.used = False
            slot.empty = slot.sharded().grad is None
        for reducer in self._reducers:
            reducer.begin(backward)

    def end_backward(self, backward: Backward) -> None:
        """Reduce what FSDP2 has not, and agree on which parameters have a gradient at all."""
        for slot in self.slots:
            slot.collect()
        reduce_all(self._reducers)
        if self.slots:
            self.engine.agree_on_reductions()
            # On the host, where reading the answer waits for no GPU.
            flags = torch.tensor([[s.used, s.late is not None] for s in self.slots]).int()
            dist.all_reduce(flags, dist.ReduceOp.MAX)
            for slot, (used, late) in zip(self.slots, flags.tolist(), strict=True):
                if not used and slot.empty:
                    slot.set_grad(None)  # FSDP2 has reduced zeros
                if late:
                    slot.reduce_late()
        for statistics in self._statistics:
            statistics.average(backward.weight)

    def backward_inputs(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return what stands in the graph for the parameters among ``inputs``."""
        return [t for given in inputs for t in stand_ins(given)]

    def step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        """Step on this rank's rows if the optimizer works element by element."""
        if self._waits:
            self._shard()
            self._watch()
        sharded = any(
            isinstance(p, ShardedParameter) for g in optimizer.param_groups for p in g["params"]
        )
        steps = self._steps_of(optimizer) if sharded else None
        return plain() if steps is None else steps.step(optimizer, plain)

    def _steps_of(self, optimizer: Optimizer) -> LocalSteps | None:
        if optimizer not in self._steps:
            keys = elementwise_states(optimizer)
            name = type(optimizer).__name__
            if keys is None:
                self.notice(f"whole-steps-{name}", WHOLE_STEPS.format(name=name))
            self._steps[optimizer] = None if keys is None else LocalSteps(keys)
        return self._steps[optimizer]

    def clip_grad_norm(
        self,
        parameters: list[Tensor],
        max_norm: float,
        norm_type: float,
        plain: Callable[[list[Tensor]], Tensor],
    ) -> Tensor:
        """Clip by the norm of all gradients, of which each rank adds up its rows."""
        faces: list[Any] = [p for p in parameters if isinstance(p, ShardedParameter)]
        rows = [s.grad.to_local() for s in (f._slot.sharded() for f in faces) if s.grad is not None]
        if not rows:
            return plain(parameters)
        others = [p for p in parameters if not isinstance(p, Face)]
        norm_type = float(norm_type)
        device = torch.device(self.device)
        norms = torch.stack([torch.linalg.vector_norm(r, norm_type) for r in rows if r.numel()]
                            or [torch.zeros((), device=rows[0].device)]).to(device)  # fmt: skip
        infinite = norm_type == float("inf")
        mine = norms.max() if infinite else (norms**norm_type).sum()
        dist.all_reduce(mine, dist.ReduceOp.MAX if infinite else dist.ReduceOp.SUM)
        # A parameter whose gradient is the norm of all that is sharded stands for it.
        stand_in = nn.Parameter(torch.zeros(1, dtype=mine.dtype, device=device))
        before = (mine if infinite else mine ** (1 / norm_type)).reshape(1)
        stand_in.grad = before.clone()
        total = plain([stand_in, *others])
        factor = torch.where(before > 0, stand_in.grad / before, torch.ones_like(before))
        for part in rows:
            part.mul_(factor.to(part.device, part.dtype))
        return total

    def join_save(self, value: Any) -> None:
        """Gather with rank 0 what it pickles, in the order in which it is met."""
        GatheringAttendance().dump(value)

    def finish(self) -> None:
        """Make every object of the cell whole again; collective."""
        if self.slots:
            self.engine.call_order.check(END_OF_CELL)
        self._finished = True
        optimizers = [o for unit in self._units for o in unit.optimizers]
        if self.slots:
            bring_home(self.slots, optimizers, self.engine.lent, self.rank)
        self._close()

    def release(self) -> None:
        """Take all hooks off; what has not come home gets the values it came with."""
        if not self._finished and self.slots:
            optimizers = [o for unit in self._units for o in unit.optimizers]
            put_back_unfinished(self.slots, optimizers, self.engine.lent, self.notice)
        self._close()

    def _close(self) -> None:
        for reducer in self._reducers:
            reducer.close()
        self._reducers = []
        if self._engine is not None:
            self._engine.close()
            self._engine.slots = []


def _is_sharded(module: nn.Module) -> bool:
    return any(isinstance(p, ShardedParameter) for p in module.parameters())


def _is_under_way(module: nn.Module) -> bool:
    """Tell whether autograd keeps a parameter for a backward pass, whose values it will need."""
    # One reference is the object's own, one may be the node that adds up its gradient.
    return any(_use_count(p) > 2 for p in module.parameters())


def _use_count(parameter: Any) -> int:
    return int(parameter._use_count())


class ZeroStage2(FullyShardedDataParallel):
    """FSDP2 that keeps gathered parameters from forward to backward: ZeRO stage 2."""

    profile: ClassVar[Profile] = profiles.ZERO2
    reshards: ClassVar[bool] = False
