"""``zero1``: as ``ddp``, and each rank keeps the optimizer states of some of the parameters.

ZeRO stage 1 (Rajbhandari et al., SC 2020, 1910.02054), with torch's ``ZeroRedundancyOptimizer``: it
partitions the parameters over ranks, each rank steps its own, and all gather them.  It creates a
local optimizer from a class.  Here that class does not step itself: it lets the cell's optimizer
step with its groups restricted to the rank's parameters.  So every optimizer works with all its
options, including the user's own classes, and changes that the cell or a scheduler makes to the
groups take effect at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, cast
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from nbmgpu.errors import StrategyError, format_message

from . import profiles
from .base import RankContext, Unit
from .collective_pickle import CollectivePickle
from .ddp import DistributedDataParallel
from .owned_tensors import owned_buckets
from .per_parameter import cross_parameter_dependence, has_closure, unhooked_step
from .profile import Profile
from .sharded_state import ShardedStates

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

LOST_STATES = (
    "The cell did not end normally, so the optimizer states on other ranks are lost: the optimizer "
    "now has the states of rank 0's parameters, and begins with new ones for the others."
)


class LocalOptimizer:
    """The optimizer that ``ZeroRedundancyOptimizer`` steps on this rank."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        """Hold this rank's ``groups``; each has a list of parameters, which may be empty."""
        self.param_groups = [{"params": group["params"]} for group in groups]

    def step(self, call: Callable[[], Any]) -> Any:
        """Run ``call``, a step of the cell's optimizer."""
        return call()


class PartitionedOptimizer(ZeroRedundancyOptimizer):
    """Partitions the parameters of one optimizer of the cell over the ranks of a group."""

    of_engine = True

    def __init__(self, optimizer: Optimizer, group: ProcessGroup | None) -> None:
        """Partition the parameters that ``optimizer`` has now; ``group`` is None for all ranks."""
        self.signature = signature(optimizer)
        groups = [{"params": list(group["params"])} for group in optimizer.param_groups]
        super().__init__(groups, cast("type[Optimizer]", LocalOptimizer), process_group=group)
        partition: Any = self._partition_parameters()  # type: ignore[attr-defined]
        self._owned = owned_buckets(
            [[p for group in groups for p in group["params"]] for groups in partition]
        )

    def _verify_same_dense_param_type(self) -> None:
        """Allow parameters of several dtypes: each bucket has parameters of one dtype."""

    def _sync_params(self) -> None:
        """Gather each rank's parameters in buckets, where torch broadcasts them one by one."""
        for bucket in self._owned:
            bucket.gather(self.rank, self.process_group)

    def step(self, closure: None = None, **kwargs: Any) -> Any:  # type: ignore[override]
        """Step this rank's parameters, and gather those of the others."""
        return super().step(closure, **kwargs)

    step.hooked = True  # type: ignore[attr-defined]  # torch's mark: no hooks are called here

    @property
    def local(self) -> LocalOptimizer:
        """The local optimizer."""
        return cast(LocalOptimizer, self.optim)

    def own_parameters(self) -> list[Tensor]:
        """Return this rank's parameters."""
        return [p for group in self.local.param_groups for p in group["params"]]

    def step_of(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Run ``optimizer.step(*args, **kwargs)``, without its hooks, on all ranks together."""
        states = cast(ShardedStates, optimizer.state)
        groups = _LocalGroups(optimizer, self.local, states)
        arguments = [groups.wrap_closure(value) for value in args]
        named = {name: groups.wrap_closure(value) for name, value in kwargs.items()}
        call = functools.partial(unhooked_step(optimizer), optimizer, *arguments, **named)
        with groups, states.local_only():
            return self.step(call=call)


class _LocalGroups:
    """Restricts the groups of an optimizer to a rank's parameters for the duration of a step."""

    def __init__(self, optimizer: Optimizer, local: LocalOptimizer, states: ShardedStates) -> None:
        self.groups = optimizer.param_groups
        self.states = states
        self.all_parameters = [group["params"] for group in self.groups]
        self.own_parameters = [group["params"] for group in local.param_groups]
        self.calls = 0

    def __enter__(self) -> None:
        self._set(self.own_parameters)

    def __exit__(self, *details: object) -> None:
        self._set(self.all_parameters)

    def _set(self, lists: list[Any]) -> None:
        for group, parameters in zip(self.groups, lists, strict=True):
            group["params"] = parameters

    def wrap_closure(self, value: Any) -> Any:
        """Return a closure that finds the whole optimizer; other values as they are."""
        if not callable(value):
            return value

        @functools.wraps(value)
        def closure(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls > 1:
                what = "zero1 cannot step an optimizer that calls its closure several times"
                allowed = "Between the calls, ranks have changed different parameters"
                raise StrategyError(format_message(what, allowed, "%%mgpu --strategy ddp"))
            with self._unrestricted():
                return value(*args, **kwargs)

        return closure

    @contextmanager
    def _unrestricted(self) -> Iterator[None]:
        self._set(self.all_parameters)
        try:
            with self.states.gathered_on_access():
                yield
        finally:
            self._set(self.own_parameters)


def signature(optimizer: Optimizer) -> Any:
    """Return what the partition depends on: which parameters, in which groups, frozen or not."""
    groups = optimizer.param_groups
    return [[(id(p), p.requires_grad) for p in group["params"]] for group in groups]


class ZeroStage1(DistributedDataParallel):
    """Replicated parameters, averaged gradients, sharded optimizer states."""

    profile: ClassVar[Profile] = profiles.ZERO1
    shards_state: ClassVar[bool] = True
    drops_units: ClassVar[bool] = False

    def __init__(self, context: RankContext) -> None:
        """Initialize without any optimizer."""
        super().__init__(context)
        self._partitioned: WeakKeyDictionary[Optimizer, PartitionedOptimizer] = WeakKeyDictionary()
        self._checked: WeakKeyDictionary[Optimizer, set[bool]] = WeakKeyDictionary()

    @property
    def state_group(self) -> ProcessGroup | None:
        """The ranks over which states are sharded; None for all."""
        return self.dp_group

    def prepare(self, units: list[Unit]) -> None:
        """Hook the parameters, and partition those of each optimizer.

        Raises:
            StrategyError: an optimizer does not update each parameter independently.
        """
        super().prepare(units)
        for unit in units:
            for optimizer in unit.optimizers:
                self._check(optimizer, with_closure=False)
                self._partition(optimizer)

    def _check(self, optimizer: Optimizer, with_closure: bool) -> None:
        known = self._checked.setdefault(optimizer, set())
        if with_closure in known:
            return
        if problem := cross_parameter_dependence(optimizer, with_closure):
            name = type(optimizer).__name__
            what = f"zero1 cannot train with {name}: {problem}"
            allowed = "Each rank steps some of the parameters, without the others"
            raise StrategyError(format_message(what, allowed, "%%mgpu --strategy ddp"))
        known.add(with_closure)

    def _partition(self, optimizer: Optimizer) -> PartitionedOptimizer:
        """Partition an optimizer's parameters if they have changed; collective if states move."""
        partitioned = self._partitioned.get(optimizer)
        states: Any = optimizer.state
        if partitioned is None or partitioned.signature != signature(optimizer):
            if isinstance(states, ShardedStates):
                states.gather()
                states = states.plain()
            partitioned = PartitionedOptimizer(optimizer, self.state_group)
            self._partitioned[optimizer] = partitioned
        if not isinstance(states, ShardedStates):  # the cell has loaded or replaced them
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            own = partitioned.own_parameters()
            optimizer.state = ShardedStates(states, parameters, own, self.state_group)
            with optimizer.state.local_only():
                pass
        return partitioned

    def step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        """Step each rank's parameters; hooks of the cell see the whole optimizer, once."""
        call = cast("functools.partial[Any]", plain)
        args, kwargs = call.args[1:], call.keywords
        if has_closure(args, kwargs):
            self._check(optimizer, with_closure=True)
        partitioned = self._partition(optimizer)

        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            return partitioned.step_of(optimizer, *args, **kwargs)

        return Optimizer.profile_hook_step(step)(optimizer, *args, **kwargs)

    @contextmanager
    def describing_states(self) -> Iterator[None]:
        """Describe optimizer states of other ranks while a checkpoint is captured."""
        with ExitStack() as stack:
            for _, states in self._sharded():
                stack.enter_context(states.described_on_access())
            yield

    def join_save(self, value: Any) -> None:
        """Gather, together with rank 0, the states of the optimizers that it pickles."""
        CollectivePickle().dump(value)

    def finish(self) -> None:
        """Gather all states on rank 0."""
        super().finish()
        for optimizer, states in self._sharded():
            states.gather(dst=0)
            states.is_complete = True  # the other ranks need no more than they hold
            optimizer.state = states.plain()

    def _sharded(self) -> list[tuple[Optimizer, ShardedStates]]:
        """Return the optimizers whose states are sharded, in the same order on all ranks."""
        units = [optimizer for unit in self._units for optimizer in unit.optimizers]
        return [(o, o.state) for o in units if isinstance(o.state, ShardedStates)]

    def release(self) -> None:
        """Remove all hooks, and replace optimizer states by plain dicts."""
        for optimizer, states in self._sharded():
            if not states.is_complete:
                self.notice("optimizer-states-lost", LOST_STATES)
            optimizer.state = states.plain()
        super().release()
