"""Random numbers in a call on this rank's samples: those of one device.

Each draw is repeated for the whole batch, from the generator of the notebook, and the rank keeps
what is of its samples.  A trial finds out which functions draw, and where the samples are in each
draw, by comparing shapes with those of a call on the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from nbmgpu.strategies.sequence.region import NotSplittableError

from .region import BatchRegion, SampleDim

aten = torch.ops.aten

FILLING = frozenset({
    aten.bernoulli_, aten.normal_, aten.uniform_, aten.exponential_, aten.random_,
    aten.log_normal_, aten.cauchy_, aten.geometric_,
})  # fmt: skip
"""Operators that fill a tensor with random numbers, whatever it held before."""

OF_SHAPE = frozenset({aten.rand_like, aten.randn_like, aten.randint_like})
"""Operators that return random numbers in the shape of their first argument."""

DRAWING = FILLING | OF_SHAPE | {
    aten.rand, aten.randn, aten.randint, aten.normal, aten.bernoulli, aten.multinomial,
    aten.poisson, aten.binomial, aten.native_dropout,
}  # fmt: skip
"""All operators that draw."""

FUSED = "aten._scaled_dot_product_"
"""How names of attention kernels begin; how much they draw for dropout depends on sizes."""


@dataclass(frozen=True)
class Place:
    """Where the samples are in a tensor or a shape with which random numbers are drawn.

    Attributes:
        samples: the dimension of the samples; None if it is the same for all samples.
        order: dimensions of a tensor in their order in memory, outermost first: random numbers are
            drawn in it.  The one of a single sample would not tell where others are.
    """

    samples: SampleDim | None
    order: tuple[int, ...]

    def fits(self, shape: torch.Size, order: tuple[int, ...], region: BatchRegion) -> bool:
        """Whether a tensor or a shape may have its samples here; see ``Draw``."""
        return len(order) == len(self.order) and region.fits(shape, self.samples)

    def whole_like(self, part: Tensor, region: BatchRegion) -> Tensor:
        """Return an empty tensor for all samples like ``part``."""
        shape = region.whole_shape(part.shape, self.samples)
        sizes = [shape[dim] for dim in self.order]
        empty = torch.empty(sizes, dtype=part.dtype, device=part.device)
        return empty.permute([self.order.index(dim) for dim in range(part.dim())])


@dataclass(frozen=True)
class Draw:
    """One draw.

    Attributes:
        operator: what draws.
        shapes: shapes of its arguments that are tensors or shapes.
        orders: the order in memory of the dimensions of each; see ``Place``.
    """

    operator: Any
    shapes: tuple[torch.Size, ...]
    orders: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(func: Any, args: Sequence[Any]) -> Draw:
        """Return the draw that a call of an operator is."""
        args = [arg for arg in args if _has_shape(arg)]
        shapes, orders = tuple(map(_shape, args)), tuple(map(_order, args))
        return Draw(func.overloadpacket, shapes, orders)


@dataclass(frozen=True)
class DrawPlan:
    """What a trial has found out about the random numbers of a module.

    Attributes:
        functions: the functions of torch that draw; None if a draw was in none of them.
        operators: the operator of each draw, in order.
        places: where the samples are in each shape of each draw.
    """

    functions: frozenset[Any] | None = frozenset()
    operators: tuple[Any, ...] = ()
    places: tuple[tuple[Place, ...], ...] = ()

    @property
    def draws(self) -> bool:
        """Whether there are any."""
        return bool(self.operators)


class DrawRecorder(TorchDispatchMode):
    """Records the draws of a call on the whole batch.

    Attributes:
        found: the draws.
        functions: see ``DrawPlan``.
    """

    def __init__(self) -> None:
        """Start without draws."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Draw] = []
        self.functions: set[Any] | None = set()
        self._function = _CurrentFunction()
        self._generators: dict[int, tuple[torch.Generator, Tensor]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the draws of the body, and restore generators of the cell in the end."""
        try:
            with self._function, self:
                yield
        finally:
            for generator, state in self._generators.values():
                generator.set_state(state)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, and record it if it draws."""
        kwargs = kwargs or {}
        _check_kernel(func, args, kwargs)
        if func.overloadpacket in DRAWING:
            generator = kwargs.get("generator")
            if generator is not None:
                self._generators.setdefault(id(generator), (generator, generator.get_state()))
            self.found.append(Draw.of(func, args))
            if self._function.current is None:
                self.functions = None
            elif self.functions is not None:
                self.functions.add(self._function.current)
        return func(*args, **kwargs)


class _CurrentFunction(TorchFunctionMode):
    """Knows which function of torch runs."""

    current: Any = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        before, self.current = self.current, func
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.current = before


class DrawsOfBatch(TorchDispatchMode):
    """Draws for the whole batch, in a call on this rank's samples.

    Attributes:
        places: see ``DrawPlan``; in a trial, what is found.
    """

    def __init__(
        self, region: BatchRegion, plan: DrawPlan, recorded: Sequence[Draw] | None = None
    ) -> None:
        """Initialize the mode.

        Args:
            region: the samples.
            plan: what is known; in a trial, only which functions draw.
            recorded: in a trial, the draws of the call on the whole batch.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: list[tuple[Place, ...]] = []
        self._region = region
        self._plan = plan
        self._recorded = recorded
        self._functions = None if plan.functions is None else _InFunctions(plan.functions, self)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the draws of the body be those of one device."""
        with self._functions or self:
            yield

    @contextmanager
    def repeated(self, number: int) -> Iterator[None]:
        """Let the body draw again from draw ``number`` on."""
        before, self.places = self.places, self.places[:number]
        try:
            with self.active():
                yield
        finally:
            self.places = before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator; one that draws, for the whole batch."""
        _check_kernel(func, args, kwargs or {})
        if func.overloadpacket not in DRAWING:
            return func(*args, **(kwargs or {}))
        places = self._places_of(Draw.of(func, args))
        self.places.append(places)
        if not any(place.samples for place in places):
            return func(*args, **(kwargs or {}))
        return self._draw(func, args, kwargs or {}, places)

    def _places_of(self, draw: Draw) -> tuple[Place, ...]:
        """Return where the samples are in the shapes of a draw.

        Raises:
            NotSplittableError: there was no such draw in the trial.
        """
        index, region = len(self.places), self._region
        if self._recorded is not None:
            whole = self._recorded[index] if index < len(self._recorded) else None
            if whole is None or whole.operator != draw.operator:
                raise NotSplittableError("it draws other random numbers for some of the samples")
            return tuple(
                Place(region.find(part, of_batch), order)
                for part, of_batch, order in zip(
                    draw.shapes, whole.shapes, whole.orders, strict=True
                )
            )
        known = list(zip(self._plan.operators, self._plan.places, strict=True))
        # Stochastic depth leaves out some of the draws: then a similar one tells.
        for operator, places in (*known[index : index + 1], *known):
            fits = operator == draw.operator and len(places) == len(draw.shapes)
            if fits and all(
                place.fits(shape, order, region)
                for place, shape, order in zip(places, draw.shapes, draw.orders, strict=True)
            ):
                return places
        raise NotSplittableError("it draws other random numbers than in its trial")

    def _draw(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        places: tuple[Place, ...],
    ) -> Any:
        """Draw for the whole batch, and return what is of this rank's samples."""
        region, packet = self._region, func.overloadpacket
        if packet is aten.native_dropout:
            return self._dropout(func, args, places[0])
        known, whole = iter(places), []
        for index, arg in enumerate(args):
            if not _has_shape(arg):
                whole.append(arg)
                continue
            place = next(known)
            if not isinstance(arg, Tensor):
                whole.append(region.whole_shape(_shape(arg), place.samples))
            elif index == 0 and (packet in FILLING | OF_SHAPE or func is aten.bernoulli.p):
                whole.append(place.whole_like(arg, region))
            else:  # it says how to draw
                region.before_collective()
                whole.append(region.gather_samples(arg, place.samples))
        drawn = func(*whole, **kwargs)
        part = region.part(drawn, next(place.samples for place in places if place.samples))
        return args[0].copy_(part) if packet in FILLING else part.clone()

    def _dropout(self, func: Any, args: tuple[Any, ...], place: Place) -> tuple[Tensor, Tensor]:
        input, p, train = args
        _, mask = func(place.whole_like(input, self._region), p, train)
        mask = self._region.part(mask, place.samples).clone()
        return input * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


class _InFunctions(TorchFunctionMode):
    """Runs some functions of torch in a mode."""

    def __init__(self, functions: frozenset[Any], mode: TorchDispatchMode) -> None:
        super().__init__()
        self._chosen = functions
        self._mode = mode

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func not in self._chosen:
            return func(*args, **(kwargs or {}))
        with self._mode:
            return func(*args, **(kwargs or {}))


def _check_kernel(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise NotSplittableError if the operator is a kernel that draws by itself."""
    if str(func.overloadpacket).startswith(FUSED):
        names = [argument.name for argument in func._schema.arguments]
        if (dict(zip(names, args, strict=False)) | kwargs).get("dropout_p"):
            raise NotSplittableError("its attention kernel draws the dropout by itself")


def _order(arg: Any) -> tuple[int, ...]:
    dims = range(arg.dim()) if isinstance(arg, Tensor) else ()
    return tuple(sorted(dims, key=arg.stride, reverse=True)) if dims else ()


def _has_shape(arg: Any) -> bool:
    return isinstance(arg, Tensor) or (
        isinstance(arg, list | tuple) and all(isinstance(size, int) for size in arg)
    )


def _shape(arg: Any) -> torch.Size:
    return arg.shape if isinstance(arg, Tensor) else torch.Size(arg)
