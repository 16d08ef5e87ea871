"""What every strategy is made of, and what it is told.

A rank tells its strategy which *units* train (``prepare``), that a backward pass
begins and ends (``begin_backward``, ``end_backward``), that the cell takes a step
or clips (``step``, ``clip_grad_norm``), and that the cell is over (``finish``,
``release``).  A strategy may replace parameters, own a device mesh, or run in one
process; the cell must not notice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from .scalars import Amount
from .strategy_options import Tuning

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from .profiles import Profile


@dataclass(frozen=True)
class RankContext:
    """Where a strategy works, with what options, and how it speaks to the user.

    Attributes:
        rank: of this process; the process group exists already.
        world_size: how many ranks there are.
        device: ``cpu`` or ``cuda:0``.
        tuning: the options that strategies have.
        say: shows a text to the user, once per topic and run: ``say("my-topic", text)``.
    """

    rank: int
    world_size: int
    device: str
    tuning: Tuning
    say: Callable[[str, str], None]


@dataclass(eq=False)
class Unit:
    """What trains together: optimizers, and the outermost modules that own their parameters."""

    modules: list[nn.Module]
    optimizers: list[Optimizer]

    def parameters(self) -> list[nn.Parameter]:
        """Return every parameter of the modules and of the optimizers, once, in order.

        Also those that no optimizer updates: ``clip_grad_norm_`` looks at them all.
        """
        seen: dict[int, Any] = {id(p): p for module in self.modules for p in module.parameters()}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    seen.setdefault(id(parameter), parameter)
        return list(seen.values())

    @property
    def trains(self) -> bool:
        """Whether any of its parameters is trained at this moment."""
        return any(parameter.requires_grad for parameter in self.parameters())

    def buffers(self) -> Iterator[Tensor]:
        """Yield the floating point buffers of the modules, such as running statistics."""
        for module in self.modules:
            for buffer in module.buffers():
                if buffer.is_floating_point():
                    yield buffer


@dataclass
class Backward:
    """One call of ``backward()``.

    Attributes:
        weight: what this rank's gradient counts for; ranks' weights need not sum to 1.
            A float, or a tensor of shape () on the loss's device.
        normalized: whether the weights of all ranks are known to sum to 1.
        scalars: losses of shape () that shall hold their value over the global batch
            afterwards; changed in place.
        totals: for each scalar, whether ranks' values add up (a summed loss) instead
            of being averaged by weight.
        closes: whether an optimizer step may follow; False while gradients accumulate.
    """

    weight: Amount
    normalized: bool
    scalars: list[Tensor] = field(default_factory=list)
    totals: list[bool] = field(default_factory=list)
    closes: bool = True


class Strategy(ABC):
    """Base of all strategies."""

    profile: ClassVar[Profile]
    """Name, options and documentation, without torch."""

    weighs_losses: ClassVar[bool] = False
    """Whether ranks' losses are weighed before their backward passes.

    For engines that average gradients by themselves: the gradient that starts a pass
    is then multiplied by world_size * w_r / sum(w), so that the plain average over
    ranks is the global gradient; the losses are global before the pass begins.  Else
    the strategy weighs gradients itself, as ``Backward`` says.
    """

    spreads: ClassVar[bool] = False
    """Whether ranks hold different parts, which only all of them together can bring home."""

    forgets: ClassVar[bool] = False
    """Whether ``forget`` is to be called when optimizers are gone, such as an earlier fold's."""

    took_part = True
    """Set by ``end_backward``: False if the pass reached nothing that was prepared, on any rank."""

    def __init__(self, context: RankContext) -> None:
        """Belong to one rank."""
        self.rank = context.rank
        self.world_size = context.world_size
        self.device = context.device
        self.tuning = context.tuning
        self.say = context.say

    @abstractmethod
    def prepare(self, units: list[Unit]) -> None:
        """Make units train as one; called with all of them whenever optimizers appear or change.

        Raises:
            StrategyError: the strategy cannot train a unit exactly.
        """

    def loss_scale(self) -> float:
        """Return what losses are multiplied by before a backward pass, if they are weighed.

        The strategy divides the gradients by it: small ones vanish in float16.
        """
        return 1.0

    def forget(self) -> None:  # noqa: B027 - most strategies keep their units to the end
        """Let go of all units; ``prepare`` is called next, with those that are still in use."""

    @abstractmethod
    def begin_backward(self, backward: Backward) -> None:
        """Get ready for gradients to arrive."""

    @abstractmethod
    def end_backward(self, backward: Backward) -> None:
        """Leave in every ``.grad`` what one device would have computed."""

    def backward_inputs(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return what stands in autograd's graph for ``inputs``, given to ``backward(inputs=)``."""
        return inputs

    def step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        """Do the cell's ``optimizer.step()``.

        Args:
            optimizer: whose step it is.
            plain: a ``functools.partial`` of the optimizer's own: its ``args[0]`` is the optimizer,
                the rest is what the cell has passed, such as a closure.

        Raises:
            StrategyError: there is a closure, and it cannot be called as on one device.
        """
        return plain()

    def zero_grad(self, optimizer: Optimizer, plain: Callable[[], None]) -> None:
        """Do the cell's ``optimizer.zero_grad()``."""
        plain()

    def clip_grad_norm(
        self,
        parameters: list[Tensor],
        max_norm: float,
        norm_type: float,
        plain: Callable[[list[Tensor]], Tensor],
    ) -> Tensor:
        """Clip gradients as one device would; return their norm before, a tensor of shape ().

        Args:
            parameters: those whose gradients are clipped together.
            max_norm: what their norm shall not exceed.
            norm_type: the p of the norm, 2.0 as a rule; ``inf`` for the largest element.
            plain: clips the gradients that ``parameters`` have on this rank.
        """
        return plain(parameters)

    def attend(self, value: Any) -> None:  # noqa: B027 - most strategies have all on rank 0
        """Take part, on the other ranks, while rank 0 pickles ``value`` to save it."""

    def hooks_on(self, parameter: Tensor) -> int:
        """Return how many hooks for arriving gradients the strategy has put on ``parameter``."""
        return 0

    def explain(self, error: BaseException) -> str:
        """Return what ``error`` means under this strategy, and the way out; empty if unknown."""
        return ""

    def copies(self) -> list[Tensor]:
        """Return the weights of which every rank has a whole copy, in the same order."""
        return []

    def finish(self) -> None:  # noqa: B027 - most strategies have nothing to collect
        """Collect what is spread over ranks; called on all ranks after a cell that succeeded."""

    @abstractmethod
    def release(self) -> None:
        """Take hooks off the user's objects; they travel back to the notebook."""
