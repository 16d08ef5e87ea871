"""The interface of strategies: what a rank passes to its strategy, and which methods it calls.

A rank calls ``prepare`` with the units that train, ``begin_backward`` and ``end_backward`` around
each backward pass, ``step``, ``zero_grad`` and ``clip_grad_norm`` in place of the cell's calls, and
``finish`` and ``release`` at the end of the cell.  A strategy may replace parameters, arrange ranks
in a device mesh of several dimensions, or run in one process, as long as the cell observes no
difference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from .mesh import RankMesh
from .mesh_sizes import mesh_sizes
from .sample_tags import CopyTag
from .scalars import Scalar
from .strategy_options import StrategyOptions

if TYPE_CHECKING:
    from datetime import timedelta

    from torch import Tensor, nn
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from .profile import Profile


@dataclass(frozen=True)
class RankContext:
    """What a strategy knows about its rank.

    Attributes:
        rank: rank of this process, in 0 .. world_size - 1.
        world_size: number of ranks of the run.
        mesh: the device mesh that ``Strategy.mesh_shape`` describes, and the rank's position in it.
        device: ``cpu`` or ``cuda:0``, the only GPU that the rank sees.
        options: the options that strategies take.
        notice: shows a text to the user, at most once per topic and run: ``notice(topic, text)``.
    """

    rank: int
    world_size: int
    mesh: RankMesh
    device: str
    options: StrategyOptions
    notice: Callable[[str, str], None]


@dataclass(eq=False)
class Unit:
    """Optimizers and modules that train together.

    Attributes:
        modules: the outermost modules that own the optimizers' parameters.
        optimizers: optimizers that share modules, in the order in which they were created.
    """

    modules: list[nn.Module]
    optimizers: list[Optimizer]

    def parameters(self) -> list[nn.Parameter]:
        """Return every parameter once, in order, also those that no optimizer has."""
        seen: dict[int, Any] = {id(p): p for module in self.modules for p in module.parameters()}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    seen.setdefault(id(parameter), parameter)
        return list(seen.values())

    @property
    def trains(self) -> bool:
        """Whether any of its parameters requires a gradient now."""
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
        weight: weight of this rank's gradient in the average over ``dp``; the weights of all ranks
            need not sum to 1.  A float, or a tensor of shape () on the loss's device.
        normalized: whether the weights along ``dp`` are known to sum to 1.
        scalars: losses of shape () that have their value over the global batch after the pass;
            changed in place.
        summed: for each scalar, whether the ranks' values add up (a summed loss) instead of being
            averaged by weight.
        is_last: whether an optimizer step may follow; False while gradients accumulate.
        keeps_graph: whether another pass may use the same graph (``retain_graph``).
    """

    weight: Scalar
    normalized: bool
    scalars: list[Tensor] = field(default_factory=list)
    summed: list[bool] = field(default_factory=list)
    is_last: bool = True
    keeps_graph: bool = False


class Strategy(ABC):
    """Base class of all strategies."""

    profile: ClassVar[Profile]
    """Name, options and documentation; readable without torch."""

    weighs_losses: ClassVar[bool] = False
    """Whether losses are weighted before their backward passes.

    For engines that average gradients themselves.  The initial gradient of a pass is multiplied by
    dp_size * w_r / sum(w), so that the plain average over ``dp`` is the gradient of the global
    batch; the losses have their global value before the pass begins.  Otherwise the strategy
    weights the gradients, by ``Backward.weight``.
    """

    shards_state: ClassVar[bool] = False
    """Whether ranks hold different parts of the model or its states.

    ``finish`` then gathers them on rank 0 with collectives, so ranks agree on where to stop when
    the cell is interrupted.
    """

    shards_parameters: ClassVar[bool] = False
    """Whether ranks store different parts of the parameters; see ``local_numel``."""

    drops_units: ClassVar[bool] = False
    """Whether to call ``drop_units`` when optimizers were deleted, such as an earlier fold's."""

    refuses_lightning: ClassVar[str] = ""
    """Why Lightning's Trainers are refused; empty if they are not."""

    may_move_parameters = False
    """Whether a step may change which rank stores which parameters; set by the strategy."""

    copy_tag: CopyTag | None = None
    """Set by the session, which follows the samples of a batch through each step."""

    reached_parameters = True
    """Whether the last pass reached prepared parameters on any rank; set by ``end_backward``."""

    def __init__(self, context: RankContext) -> None:
        """Initialize the strategy of one rank."""
        self._context = context

    @property
    def rank(self) -> int:
        """Rank of this process, in 0 .. world_size - 1."""
        return self._context.rank

    @property
    def world_size(self) -> int:
        """Number of ranks of the run."""
        return self._context.world_size

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda:0``, the only GPU that the rank sees."""
        return self._context.device

    @property
    def options(self) -> StrategyOptions:
        """The options of the run that strategies take."""
        return self._context.options

    def notice(self, topic: str, text: str) -> None:
        """Show ``text`` to the user, at most once per topic and run."""
        self._context.notice(topic, text)

    @property
    def dp_rank(self) -> int:
        """Index of this rank's shard of a batch."""
        return self._context.mesh.dp_rank

    @property
    def dp_size(self) -> int:
        """Number of shards of a global batch: of ranks along ``dp`` and ``fsdp``."""
        return self._context.mesh.dp_size

    @property
    def dp_group(self) -> ProcessGroup | None:
        """Process group of the ranks with different shards; None for the default, of all ranks."""
        return self._context.mesh.dp_group

    @classmethod
    def mesh_shape(cls, world_size: int, options: StrategyOptions) -> dict[str, int]:
        """Return the sizes of the dimensions of the device mesh by name, outermost first.

        Ranks along ``dp`` and ``fsdp`` hold different samples.  Ranks that differ only in other
        dimensions hold the same samples and draw the same random numbers.

        Args:
            world_size: number of ranks, the product of all sizes.
            options: the options of the run.
        """
        return mesh_sizes(cls.profile, world_size, options)

    @property
    def mesh(self) -> DeviceMesh:
        """All ranks, arranged in the dimensions of ``mesh_shape``."""
        return self._context.mesh.device_mesh

    def new_dp_group(self) -> ProcessGroup:
        """Return another group of the ranks with different shards; collective on all ranks."""
        return self._context.mesh.new_dp_group()

    def new_group(self, names: Collection[str], timeout: timedelta | None = None) -> ProcessGroup:
        """Return a new group of the ranks that differ in dimensions ``names`` only; collective."""
        return self._context.mesh.new_group(names, timeout)

    @abstractmethod
    def prepare(self, units: list[Unit]) -> None:
        """Prepare all units for training; called again when optimizers appear or change.

        Raises:
            StrategyError: the strategy cannot train a unit exactly.
        """

    def loss_scale(self) -> float:
        """Return the factor of losses before a backward pass, if ``weighs_losses``.

        The strategy divides the gradients by it: small ones underflow in float16.
        """
        return 1.0

    def drop_units(self) -> None:  # noqa: B027 - most strategies keep their units to the end
        """Drop all references to units; ``prepare`` follows, with those that are still in use."""

    def check_backward(self) -> None:  # noqa: B027 - most strategies have no collective in forward
        """Check that all ranks call ``backward()`` now, before any collective of that call.

        Raises:
            StrategyError: another rank is in a forward pass, or at the end of the cell.
        """

    @abstractmethod
    def begin_backward(self, backward: Backward) -> None:
        """Prepare for the gradients of a backward pass."""

    @abstractmethod
    def end_backward(self, backward: Backward) -> None:
        """Set every ``.grad`` to the gradient that one device would have computed."""

    def backward_inputs(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return the tensors in autograd's graph for ``inputs`` of ``backward(inputs=)``."""
        return inputs

    def step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        """Run the cell's ``optimizer.step()``.

        Args:
            optimizer: the optimizer that steps.
            plain: a ``functools.partial`` of the optimizer's own step.  Its ``args[0]`` is the
                optimizer, the rest are the cell's arguments, such as a closure.

        Raises:
            StrategyError: there is a closure, and it cannot be called as on one device.
        """
        return plain()

    def zero_grad(self, optimizer: Optimizer, plain: Callable[[], None]) -> None:
        """Run the cell's ``optimizer.zero_grad()``.

        ``plain`` is a ``functools.partial`` of it, with ``optimizer, set_to_none`` as ``args``.
        """
        plain()

    def clip_grad_norm(
        self,
        parameters: list[Tensor],
        max_norm: float,
        norm_type: float,
        plain: Callable[[list[Tensor]], Tensor],
    ) -> Tensor:
        """Clip gradients as one device would.

        Args:
            parameters: parameters whose gradients are clipped together.
            max_norm: largest norm after clipping.
            norm_type: p of the p-norm, usually 2.0; ``inf`` for the largest element.
            plain: clips the gradients that ``parameters`` have on this rank.

        Returns:
            The norm before clipping, shape ().
        """
        return plain(parameters)

    def describing_states(self) -> AbstractContextManager[None]:
        """Return a context in which states that are on one rank only are not gathered.

        The other ranks find tensors on ``meta`` in their place: a checkpoint is captured.
        """
        return nullcontext()

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load a state dict of all parameters into ``optimizer``, on all ranks together.

        Its tensors are mapped from files: what the optimizer keeps is copied.
        """
        from .saved_state import copied_state

        optimizer.load_state_dict(copied_state(state))

    def join_save(self, value: Any) -> None:  # noqa: B027 - most strategies have all on rank 0
        """Take part, on the other ranks, in the collectives with which rank 0 pickles ``value``."""

    def count_hooks(self, parameter: Tensor) -> int:
        """Return how many gradient hooks the strategy has registered on ``parameter``."""
        return 0

    def local_numel(self, parameter: Tensor) -> int:
        """Return how many elements of ``parameter`` this rank stores between two steps.

        ``parameter`` is one of a unit that was prepared.  Not collective.
        """
        return parameter.numel()

    def gradient_part(self, parameter: Tensor) -> tuple[Tensor | None, int]:
        """Return this rank's part of a gradient, or None, and the index of its first element.

        The parts of all ranks make up the gradient; one that all ranks have is rank 0's part.
        """
        return (parameter.grad if self.rank == 0 else None), 0

    def explain(self, error: BaseException) -> str:
        """Return what ``error`` means under this strategy and how to fix it; empty if unknown."""
        return ""

    def replicated_parameters(self) -> list[Tensor]:
        """Return the replicated parameters, in the same order on all ranks."""
        return []

    def finish(self) -> None:  # noqa: B027 - most strategies have nothing to gather
        """Gather sharded state on rank 0; called on all ranks after a cell that succeeded."""

    @abstractmethod
    def release(self) -> None:
        """Remove hooks from the user's objects, which are then written back to the notebook."""
