"""Measures the memory of a forward and a backward pass on fake tensors.

The model is copied with fake tensors (``torch._subclasses.FakeTensorMode``), which have shapes
but no data, and a batch of fake tensors is run forward and backward through the copy.
``TensorMemoryTracker`` counts all allocations, also for ranks that have parts of the model.  The
model itself does not change: neither its
parameters and gradients nor its modes and hooks, and no random number is drawn.  A model of
70 billion parameters takes a few seconds and no memory.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from nbmgpu.environment import random_state
from nbmgpu.strategies.half_precision import HALF_DTYPES

from .fake_model import enable_checkpointing, fake_copy
from .forward_pass import batch_size, call_model, compute_loss, tensors_in
from .memory_tracker import LiveMemory, TensorMemoryTracker
from .model_parts import ModelParts
from .running_region import RunningRegion
from .shared_attention import SharedAttention

if TYPE_CHECKING:
    from nbmgpu.strategies.strategy_options import Precision

DEEP_STACK = 8
"""Minimum number of equal layers for which the memory is extrapolated from a few of them."""

FEW_LAYERS = 2
"""Layers of a deep stack in the first fake step.  The second one has twice as many."""


class FakeStepError(Exception):
    """The model does not run on fake tensors; the message has the reason."""


@dataclass(frozen=True)
class FakeStep:
    """Memory of one step, in bytes.

    Attributes:
        samples: number of samples in the batch.
        saved: activations and inputs that are saved for the backward pass, at its start.
        peak: peak of activations, inputs and intermediate results, besides parameters and
            gradients.
        peak_with_gradients: the same with gradients, which arrive while activations are freed.
        outputs: outputs of the model, which a cell may free before the backward pass.
        uncast_saved, uncast_peak: as ``saved`` and ``peak``, without the low-precision copies of
            parameters that autocast caches.  Sharded parameters are cast when they are gathered.
        layers: number of layers that the values are extrapolated to; 0 if all layers ran.
        largest_message: the largest output that ranks communicate, in full.
        all_messages: all outputs that they communicate in the forward pass, in full.
    """

    samples: int
    saved: float
    peak: float
    peak_with_gradients: float
    outputs: int
    uncast_saved: float
    uncast_peak: float
    layers: int = 0
    largest_message: int = 0
    all_messages: int = 0


def run_fake_step(
    model: nn.Module,
    batch: Any,
    samples: int,
    precision: Precision | None = None,
    checkpointing: bool = False,
) -> FakeStep:
    """Measure a step of ``model`` with a batch like ``batch``, resized to ``samples`` samples.

    Raises:
        FakeStepError: the model needs the data of tensors, or cannot be called with the batch.
    """
    (step,) = run_divided(model, batch, samples, [ModelParts()], precision, checkpointing)
    return step


def run_divided(
    model: nn.Module,
    batch: Any,
    samples: int,
    parts: Sequence[ModelParts],
    precision: Precision | None = None,
    checkpointing: bool = False,
) -> list[FakeStep]:
    """Measure a step on ranks that have ``parts`` of ``model``, for each of them.

    A deep stack of equal layers runs with a few of them, and the rest is extrapolated.

    Raises:
        FakeStepError: the model needs the data of tensors, or cannot be called with the batch.
    """
    run = functools.partial(
        _run_with_layers, model, batch, samples, parts, precision, checkpointing
    )
    try:
        with random_state.kept(), warnings.catch_warnings(), _fake_tensor_logging_disabled():
            warnings.simplefilter("ignore")
            layers = _stack_depth(model)
            if layers >= DEEP_STACK:
                # Fails if the model also depends on its number of layers elsewhere.
                with contextlib.suppress(Exception):
                    pairs = zip(run(FEW_LAYERS), run(2 * FEW_LAYERS), strict=True)
                    return [_extrapolate(few, more, layers) for few, more in pairs]
            return run(0)
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        raise FakeStepError(reason) from error


def _run_with_layers(
    model: nn.Module,
    batch: Any,
    samples: int,
    parts: Sequence[ModelParts],
    precision: Precision | None,
    checkpointing: bool,
    layers: int,
) -> list[FakeStep]:
    """Run a fake step with the first ``layers`` layers of the stack, or with all if 0."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake_model = fake_copy(model, fake_mode)
    regions = [RunningRegion(each.in_copy(model, fake_model)) for each in parts]
    if layers:
        stack = _find_stack(fake_model)
        assert stack is not None
        del stack[layers:]
    if checkpointing:
        enable_checkpointing(fake_model)
    with fake_mode, torch.enable_grad():
        resized = _resized(batch, samples)
        return _forward_and_backward(fake_model, resized, samples, precision, regions)


def _forward_and_backward(
    model: nn.Module,
    batch: Any,
    samples: int,
    precision: str | None,
    regions: list[RunningRegion],
) -> list[FakeStep]:
    tracker = TensorMemoryTracker(model, regions)
    tracker.add(batch)
    dtype = HALF_DTYPES.get(precision or "")
    with tracker:
        with (
            torch.autocast("cpu", dtype, enabled=dtype is not None),
            SharedAttention(tracker).watched(),
        ):
            output, targets = call_model(model, batch)
        loss = compute_loss(output, targets)
        saved = [(memory.live, memory.live - memory.casts) for memory in tracker.memories]
        outputs = sum(t.untyped_storage().nbytes() for t in tensors_in(output))
        loss.backward()
    return [
        _step_of(memory, samples, *at_backward, int(outputs * memory.region.output_fraction()))
        for memory, at_backward in zip(tracker.memories, saved, strict=True)
    ]


def _step_of(
    memory: LiveMemory, samples: int, saved: float, uncast_saved: float, outputs: int
) -> FakeStep:
    return FakeStep(
        samples=samples,
        saved=saved,
        peak=memory.peak,
        peak_with_gradients=memory.peak_with_gradients,
        outputs=outputs,
        uncast_saved=uncast_saved,
        uncast_peak=memory.uncast_peak,
        largest_message=memory.region.largest_message,
        all_messages=memory.region.all_messages,
    )


def _find_stack(model: nn.Module) -> nn.ModuleList | None:
    """Return the deep stack of equal layers in ``model``, if there is exactly one."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) >= DEEP_STACK]
    if len(lists) != 1:
        return None
    shapes = {(type(m), tuple(p.shape for p in m.parameters())) for m in lists[0]}
    return lists[0] if len(shapes) == 1 else None


def _stack_depth(model: nn.Module) -> int:
    stack = _find_stack(model)
    return 0 if stack is None else len(stack)


def _extrapolate(few: FakeStep, more: FakeStep, layers: int) -> FakeStep:
    """Extrapolate steps with ``FEW_LAYERS`` and twice as many layers to ``layers``."""

    def extrapolate(first: float, second: float) -> int:
        return int(first + (second - first) * (layers - FEW_LAYERS) / FEW_LAYERS)

    peak = extrapolate(few.peak, more.peak)
    with_gradients = extrapolate(few.peak_with_gradients, more.peak_with_gradients)
    return FakeStep(
        samples=few.samples,
        saved=extrapolate(few.saved, more.saved),
        peak=peak,
        peak_with_gradients=max(peak, with_gradients),
        outputs=extrapolate(few.outputs, more.outputs),
        uncast_saved=extrapolate(few.uncast_saved, more.uncast_saved),
        uncast_peak=extrapolate(few.uncast_peak, more.uncast_peak),
        layers=layers,
        largest_message=max(few.largest_message, more.largest_message),
        all_messages=extrapolate(few.all_messages, more.all_messages),
    )


@contextlib.contextmanager
def _fake_tensor_logging_disabled() -> Iterator[None]:
    """Suppress the log messages of fake tensors about operators: the advice reports failures."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _resized(batch: Any, samples: int) -> Any:
    """Return a batch of fake tensors like ``batch``, with ``samples`` samples."""
    original = batch_size(batch)

    def resize(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        shape = list(value.shape)
        if shape and shape[0] == original:
            shape[0] = samples
        return torch.zeros(shape, dtype=value.dtype)

    return tree_map(resize, dict(batch) if isinstance(batch, Mapping) else batch)
