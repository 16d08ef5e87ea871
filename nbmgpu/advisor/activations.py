"""Memory of a step besides parameters, gradients and states: by a fake step, or by formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .interval import Interval

if TYPE_CHECKING:
    from torch import nn

    from nbmgpu.strategies.strategy_options import Precision

    from .fake_step import FakeStep

LOW_MARGIN, HIGH_MARGIN = 0.95, 1.06
"""Error margins of a fake step: kernels keep workspaces, and allocators round sizes up."""

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Activations:
    """Memory of one rank's step, in bytes.

    Attributes:
        samples: number of samples on this rank.
        saved: activations that are saved for the backward pass, at its start.
        peak: peak without gradients.
        peak_with_gradients: peak with gradients, which arrive while activations are freed.
        uncast_saved, uncast_peak: as ``saved`` and ``peak``, without the low-precision copies of
            parameters that autocast caches.
        source: the source of the numbers, as text.
        extrapolated: whether the numbers are extrapolated from a few layers of a deep stack.
        largest_message: the largest output of a module that ranks communicate.
        all_messages: all outputs that they communicate in the forward pass; None if unknown.
    """

    samples: int
    saved: Interval
    peak: Interval
    peak_with_gradients: Interval
    uncast_saved: Interval
    uncast_peak: Interval
    source: str
    extrapolated: bool = False
    largest_message: float = 0.0
    all_messages: float | None = None


def from_fake_step(step: FakeStep) -> Activations:
    """Return the measurements of a fake step with their error margins."""

    def with_margin(value: float) -> Interval:
        return Interval(max(0.0, value - step.outputs) * LOW_MARGIN, value * HIGH_MARGIN)

    source = "a forward and a backward pass on fake tensors"
    if step.layers:
        source += f", extrapolated from a few of the {step.layers} layers"
    return Activations(
        step.samples,
        saved=with_margin(step.saved),
        peak=with_margin(step.peak),
        peak_with_gradients=with_margin(step.peak_with_gradients),
        uncast_saved=with_margin(step.uncast_saved),
        uncast_peak=with_margin(step.uncast_peak),
        source=source,
        extrapolated=bool(step.layers),
        largest_message=step.largest_message,
        all_messages=step.all_messages,
    )


def korthikanti(
    tokens: int, samples: int, width: int, layers: int, heads: int,
    tensor_parallel: int = 1, recompute: Recompute = "none",
) -> float:  # fmt: skip
    """Return the bytes of activations of a transformer in 16-bit precision.

    Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models
    (2205.05198), with s tokens, b samples, width h, L layers, a heads and t ranks of tensor
    parallelism: ``s*b*h*L * (10 + 24/t + 5*a*s/(h*t))``.  Selective recomputation, and
    fused attention as in torch, drop the last term.  Full recomputation keeps only the
    layers' inputs, ``2*s*b*h*L``.
    """
    elements = tokens * samples * width * layers
    if recompute == "full":
        return 2.0 * elements
    per_element = 10 + 24 / tensor_parallel
    if recompute == "none":
        per_element += 5 * heads * tokens / (width * tensor_parallel)
    return elements * per_element


def from_formula(
    model: nn.Module,
    batch: Any,
    samples: int,
    gradients: int,
    precision: Precision | None,
    checkpointing: bool,
) -> Activations | None:
    """Return the activations of a transformer by Korthikanti's formula.

    Args:
        model: a model whose config has the sizes of a transformer.
        batch: a batch with ``input_ids`` of shape (samples, tokens).
        samples: number of samples on this rank.
        gradients: bytes of all gradients.
        precision: as in ``--precision``.
        checkpointing: whether activations are recomputed.

    Returns:
        None if the model or the batch does not have the sizes that the formula needs.
    """
    shape = transformer_shape(model)
    tokens = _tokens(batch)
    if shape is None or tokens is None:
        return None
    width, layers, heads, vocabulary = shape
    sizes = tokens, samples, width, layers, heads
    # The formula is for 16 bits. Dropout masks take one byte in any precision; the range
    # covers them.
    factor = 1 if precision in ("bf16", "fp16") else 2
    logits = 4 * tokens * samples * vocabulary
    if checkpointing:
        one_layer = korthikanti(tokens, samples, width, 1, heads)
        low = korthikanti(*sizes, recompute="full") * factor
        high = low + one_layer * factor
    else:
        low = korthikanti(*sizes, recompute="selective") * factor * 0.8
        high = korthikanti(*sizes) * factor * 1.2
    saved = Interval(low + logits, high + 2 * logits)
    peak = Interval(saved.low, saved.high + logits)
    with_gradients = Interval(max(peak.low, float(gradients)), peak.high + gradients)
    source = "the formula of Korthikanti et al., 2205.05198"
    return Activations(samples, saved, peak, with_gradients, saved, peak, source)


def transformer_shape(model: nn.Module) -> tuple[int, int, int, int] | None:
    """Return width, layers, heads and vocabulary size from the config of a transformer."""
    config = getattr(model, "config", None)

    def first(*names: str) -> int:
        values = (getattr(config, name, None) for name in names)
        return next((v for v in values if isinstance(v, int) and v > 0), 0)

    width = first("hidden_size", "n_embd", "d_model", "dim")
    layers = first("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    heads = first("num_attention_heads", "n_head", "n_heads", "num_heads")
    if not (width and layers and heads):
        return None
    return width, layers, heads, first("vocab_size")


def _tokens(batch: Any) -> int | None:
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return int(ids.shape[1]) if ids is not None and ids.dim() == 2 else None
