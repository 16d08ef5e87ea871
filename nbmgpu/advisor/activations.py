"""What a step holds beside parameters, gradients and states: by rehearsal, or by formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .interval import Span

if TYPE_CHECKING:
    from torch import nn

    from nbmgpu.strategies.strategy_options import Precision

    from .fake_step import Rehearsal

LESS, MORE = 0.95, 1.06
"""How far a rehearsal may be off: kernels keep workspaces, allocators round sizes up."""

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Activations:
    """What a rank's step holds; bytes.

    Attributes:
        samples: rows of the batch on this rank.
        kept: when the backward pass begins.
        alone: at most, without gradients.
        together: at most, with the gradients as they arrive while activations go.
        bare_kept, bare_alone: as ``kept`` and ``alone``, without autocast's copies of parameters.
        source: where the numbers come from, in words.
        drawn_out: whether a few layers stand for a tall stack of them.
    """

    samples: int
    kept: Span
    alone: Span
    together: Span
    bare_kept: Span
    bare_alone: Span
    source: str
    drawn_out: bool = False


def from_rehearsal(played: Rehearsal) -> Activations:
    """Return what a rehearsal says, with its margin."""

    def about(value: int) -> Span:
        return Span((value - played.outputs) * LESS, value * MORE)

    source = "a forward and a backward pass, played on fake tensors"
    if played.layers:
        source += f" with a few of the {played.layers} layers"
    return Activations(
        played.samples,
        kept=about(played.kept),
        alone=about(played.alone),
        together=about(played.together),
        bare_kept=about(played.bare_kept),
        bare_alone=about(played.bare_alone),
        source=source,
        drawn_out=bool(played.layers),
    )


def korthikanti(
    tokens: int, samples: int, width: int, layers: int, heads: int,
    tensor_parallel: int = 1, recompute: Recompute = "none",
) -> float:  # fmt: skip
    """Return the bytes of activations of a transformer in 16 bits.

    Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models
    (2205.05198), with s tokens, b samples, width h, L layers, a heads and t ranks of tensor
    parallelism: ``s*b*h*L * (10 + 24/t + 5*a*s/(h*t))``.  Selective recomputation, and
    fused attention as in torch, keep nothing of the last term; full recomputation keeps
    the layers' inputs alone, ``2*s*b*h*L``.
    """
    volume = tokens * samples * width * layers
    if recompute == "full":
        return 2.0 * volume
    share = 10 + 24 / tensor_parallel
    if recompute == "none":
        share += 5 * heads * tokens / (width * tensor_parallel)
    return volume * share


def from_formula(
    model: nn.Module,
    batch: Any,
    samples: int,
    gradients: int,
    precision: Precision | None,
    checkpointing: bool,
) -> Activations | None:
    """Return what Korthikanti's formula says of a transformer, if ``model`` is one that says so."""
    shape = shape_of(model)
    tokens = _tokens(batch)
    if shape is None or tokens is None:
        return None
    width, layers, heads, words = shape
    numbers = tokens, samples, width, layers, heads
    # The formula is for 16 bits; dropout masks, which stay a byte, are within the range.
    double = 1 if precision in ("bf16", "fp16") else 2
    logits = 4 * tokens * samples * words
    if checkpointing:
        one = korthikanti(tokens, samples, width, 1, heads)
        low = korthikanti(*numbers, recompute="full") * double
        high = low + one * double
    else:
        low = korthikanti(*numbers, recompute="selective") * double * 0.8
        high = korthikanti(*numbers) * double * 1.2
    kept = Span(low + logits, high + 2 * logits)
    alone = Span(kept.low, kept.high + logits)
    together = Span(max(alone.low, float(gradients)), alone.high + gradients)
    source = "the formula of Korthikanti et al., 2205.05198"
    return Activations(samples, kept, alone, together, kept, alone, source)


def shape_of(model: nn.Module) -> tuple[int, int, int, int] | None:
    """Return width, layers, heads and vocabulary of a transformer, as its config names them."""
    config = getattr(model, "config", None)

    def first(*names: str) -> int:
        found = (getattr(config, name, None) for name in names)
        return next((v for v in found if isinstance(v, int) and v > 0), 0)

    width = first("hidden_size", "n_embd", "d_model", "dim")
    layers = first("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    heads = first("num_attention_heads", "n_head", "n_heads", "num_heads")
    if not (width and layers and heads):
        return None
    return width, layers, heads, first("vocab_size")


def _tokens(batch: Any) -> int | None:
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return int(ids.shape[1]) if ids is not None and ids.dim() == 2 else None
