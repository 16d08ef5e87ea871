"""``zero1``: as ``ddp``, and each rank keeps the optimizer states of its share of parameters.

ZeRO stage 1 (Rajbhandari et al., SC 2020, 1910.02054), by torch's own
``ZeroRedundancyOptimizer``: it deals parameters out to ranks, each of which steps
its own and sends them to the others.  It makes a local optimizer of a class; here that
class is a view of the cell's optimizer, which steps with its groups cut down to the
rank's share.  So every optimizer works with the options it has, also one that the
user wrote, and whatever the cell or a scheduler changes in its groups holds at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from nbmgpu.errors import StrategyError, compose

from . import profiles
from .base import RankContext, Unit
from .collective_pickle import Attendance
from .ddp import DistributedDataParallel
from .per_parameter import joins_parameters, own_step, takes_closure
from .profiles import Profile
from .sharded_state import SpreadStates

LOST_STATES = (
    "The cell did not end as it should, so the optimizer states that other ranks held are lost: "
    "the optimizer now has those of rank 0's share of the parameters, and begins anew with the "
    "others."
)


class LocalOptimizer:
    """This rank's share of the cell's optimizer: what ZeroRedundancyOptimizer steps locally."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        """Take the rank's ``groups``; each has a list of parameters, perhaps empty."""
        self.param_groups = [{"params": group["params"]} for group in groups]

    def step(self, call: Callable[[], Any]) -> Any:
        """Do ``call``, a step of the cell's optimizer."""
        return call()


class Sharded(ZeroRedundancyOptimizer):
    """Deals the parameters of one optimizer of the cell out to ranks."""

    of_engine = True

    def __init__(self, optimizer: Optimizer) -> None:
        """Share out ``optimizer``'s parameters as they are now."""
        self.signature = signature(optimizer)
        groups = [{"params": list(group["params"])} for group in optimizer.param_groups]
        super().__init__(groups, cast("type[Optimizer]", LocalOptimizer))

    def _verify_same_dense_param_type(self) -> None:
        """Allow parameters of several dtypes: each is sent by itself, not in a bucket."""

    def step(self, closure: None = None, **kwargs: Any) -> Any:  # type: ignore[override]
        """Step the rank's share and send it to the others."""
        return super().step(closure, **kwargs)

    step.hooked = True  # type: ignore[attr-defined]  # torch's mark: no hooks are fired here

    @property
    def share(self) -> LocalOptimizer:
        """The local optimizer."""
        return cast(LocalOptimizer, self.optim)

    def own(self) -> list[Tensor]:
        """Return the rank's parameters."""
        return [p for group in self.share.param_groups for p in group["params"]]

    def step_of(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Do ``optimizer.step(*args, **kwargs)``, without its hooks, on all ranks together."""
        states = cast(SpreadStates, optimizer.state)
        cut = _Cut(optimizer, self.share, states)
        arguments = [cut.whole_within(value) for value in args]
        named = {name: cut.whole_within(value) for name, value in kwargs.items()}
        call = functools.partial(own_step(optimizer), optimizer, *arguments, **named)
        with cut, states.narrowed():
            return self.step(call=call)


class _Cut:
    """The groups of an optimizer, cut down to a rank's share for the time of a step."""

    def __init__(self, optimizer: Optimizer, share: LocalOptimizer, states: SpreadStates) -> None:
        self.groups = optimizer.param_groups
        self.states = states
        self.whole = [group["params"] for group in self.groups]
        self.parts = [group["params"] for group in share.param_groups]
        self.calls = 0

    def __enter__(self) -> None:
        self._put(self.parts)

    def __exit__(self, *details: object) -> None:
        self._put(self.whole)

    def _put(self, lists: list[Any]) -> None:
        for group, parameters in zip(self.groups, lists, strict=True):
            group["params"] = parameters

    def whole_within(self, value: Any) -> Any:
        """Return a closure that finds the optimizer whole; other values as they are."""
        if not callable(value):
            return value

        @functools.wraps(value)
        def closure(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls > 1:
                what = "zero1 cannot step an optimizer that calls its closure several times"
                allowed = "Between the calls, ranks have changed different parameters"
                raise StrategyError(compose(what, allowed, "%%mgpu --strategy ddp"))
            with self._lifted():
                return value(*args, **kwargs)

        return closure

    @contextmanager
    def _lifted(self) -> Iterator[None]:
        self._put(self.whole)
        try:
            with self.states.as_cell_sees_it():
                yield
        finally:
            self._put(self.parts)


def signature(optimizer: Optimizer) -> Any:
    """Return what the dealing out depends on: which parameters, in which groups, frozen or not."""
    groups = optimizer.param_groups
    return [[(id(p), p.requires_grad) for p in group["params"]] for group in groups]


class ZeroStage1(DistributedDataParallel):
    """Replicated parameters, averaged gradients, sharded optimizer states."""

    profile: ClassVar[Profile] = profiles.ZERO1
    spreads: ClassVar[bool] = True
    forgets: ClassVar[bool] = False

    def __init__(self, context: RankContext) -> None:
        """Start without any optimizer."""
        super().__init__(context)
        self._sharded: WeakKeyDictionary[Optimizer, Sharded] = WeakKeyDictionary()
        self._checked: WeakKeyDictionary[Optimizer, set[bool]] = WeakKeyDictionary()

    def prepare(self, units: list[Unit]) -> None:
        """Hook the parameters, and deal out those of each optimizer.

        Raises:
            StrategyError: an optimizer does not update each parameter by itself.
        """
        super().prepare(units)
        for unit in units:
            for optimizer in unit.optimizers:
                self._check(optimizer, with_closure=False)
                self._deal(optimizer)

    def _check(self, optimizer: Optimizer, with_closure: bool) -> None:
        known = self._checked.setdefault(optimizer, set())
        if with_closure in known:
            return
        if problem := joins_parameters(optimizer, with_closure):
            name = type(optimizer).__name__
            what = f"zero1 cannot train with {name}: {problem}"
            allowed = "Each rank steps a share of the parameters, knowing nothing of the others"
            raise StrategyError(compose(what, allowed, "%%mgpu --strategy ddp"))
        known.add(with_closure)

    def _deal(self, optimizer: Optimizer) -> Sharded:
        """Share out an optimizer's parameters, unless that is done; collective if states move."""
        sharded = self._sharded.get(optimizer)
        states: Any = optimizer.state
        if sharded is None or sharded.signature != signature(optimizer):
            if isinstance(states, SpreadStates):
                states.collect()
                states = states.plain()
            sharded = self._sharded[optimizer] = Sharded(optimizer)
        if not isinstance(states, SpreadStates):  # the cell has loaded or replaced them
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            optimizer.state = SpreadStates(states, parameters, sharded.own())
            with optimizer.state.narrowed():
                pass
        return sharded

    def step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        """Step each rank's share; hooks of the cell see the whole optimizer, once."""
        call = cast("functools.partial[Any]", plain)
        args, kwargs = call.args[1:], call.keywords
        if takes_closure(args, kwargs):
            self._check(optimizer, with_closure=True)
        sharded = self._deal(optimizer)

        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            return sharded.step_of(optimizer, *args, **kwargs)

        return Optimizer.profile_hook_step(step)(optimizer, *args, **kwargs)

    def attend(self, value: Any) -> None:
        """Collect with rank 0 the states of optimizers that it pickles."""
        Attendance().dump(value)

    def finish(self) -> None:
        """Bring all states to rank 0."""
        super().finish()
        for optimizer, states in self._spread():
            states.collect(to=0)
            states.whole = True  # on the other ranks, what they hold is all that is needed
            optimizer.state = states.plain()

    def _spread(self) -> list[tuple[Optimizer, SpreadStates]]:
        """Return the optimizers whose states are spread, in an order that ranks share."""
        units = [optimizer for unit in self._units for optimizer in unit.optimizers]
        return [(o, o.state) for o in units if isinstance(o.state, SpreadStates)]

    def release(self) -> None:
        """Take all hooks off, and give optimizers a plain state."""
        for optimizer, states in self._spread():
            if not states.whole:
                self.say("lost-states", LOST_STATES)
            optimizer.state = states.plain()
        super().release()
