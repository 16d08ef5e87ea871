"""What every strategy is made of, and what it is told.

A rank tells its strategy three things: which *units* train (``prepare``), that
a backward pass begins and ends (``begin_backward``, ``end_backward``), and that
the cell is over (``release``).  A strategy may replace parameters, own a device
mesh, or run in one process; the cell must not notice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


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

    def frozen(self) -> list[bool]:
        """Return for each parameter whether it is excluded from training at this moment."""
        return [not parameter.requires_grad for parameter in self.parameters()]

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
    """

    weight: float | Tensor
    normalized: bool
    scalars: list[Tensor] = field(default_factory=list)
    totals: list[bool] = field(default_factory=list)


class Strategy(ABC):
    """Base of all strategies.  ``summary`` is one line for people."""

    name: ClassVar[str]
    summary: ClassVar[str]
    shards_data: ClassVar[bool] = True
    """Whether each rank takes a slice of every global batch."""
    hooks_per_parameter: ClassVar[int] = 0
    """How many hooks for arriving gradients the strategy itself puts on a parameter."""

    def __init__(self, rank: int, world_size: int, device: str) -> None:
        """Belong to ``rank`` of ``world_size``; the process group exists already."""
        self.rank = rank
        self.world_size = world_size
        self.device = device

    @abstractmethod
    def prepare(self, units: list[Unit]) -> None:
        """Make new units train as one; called whenever optimizers appear or change."""

    @abstractmethod
    def begin_backward(self, backward: Backward) -> None:
        """Get ready for gradients to arrive."""

    @abstractmethod
    def end_backward(self, backward: Backward) -> None:
        """Leave in every ``.grad`` what one device would have computed."""

    def finish(self) -> None:  # noqa: B027 - most strategies have nothing to collect
        """Collect what is spread over ranks; called on all ranks after a cell that succeeded."""

    @abstractmethod
    def release(self) -> None:
        """Take hooks off the user's objects; they travel back to the notebook."""
