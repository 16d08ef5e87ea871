"""Which options a strategy supports, and what to suggest instead of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

COMMON_OPTIONS = frozenset({"accumulate", "precision", "compile", "clip", "checkpointing"})
"""Options of every strategy that trains plain modules."""

DDP_OPTIONS = frozenset({"find_unused", "static_graph", "bucket_views", "compress"})
PP_OPTIONS = frozenset({"microbatches", "schedule", "split_points", "balance"})
TP_OPTIONS = frozenset({"tp_plan", "sequence_parallel"})
FSDP_OPTIONS = frozenset({"fsdp_units", "cpu_offload"})

ALTERNATIVES = {
    "cpu_offload": "fsdp",
    "fsdp_units": "fsdp",
    "deepspeed_config": "deepspeed_stage_2",
    "mesh": "tp",
    "microbatches": "pp",
    "schedule": "pp",
    "sequence_parallel": "tp",
    "split_points": "pp",
    "balance": "pp",
    "tp_plan": "tp",
}
"""The strategy to suggest for options that others do not support."""

DDP_FOR = {"exact": "ddp"}
"""The same for options of ddp that no other kind of strategy has an equivalent of."""

REASONS = {
    "find_unused": "it is an option of ddp's reducer",
    "static_graph": "it is an option of ddp's reducer",
    "bucket_views": "it is an option of ddp's reducer",
    "compress": "it is an option of ddp's reducer",
    "fsdp_units": "only fsdp, hsdp and zero2 shard modules by units",
    "cpu_offload": "the model is not sharded, so there are no shards to offload",
    "deepspeed_config": "it configures DeepSpeed's engine",
    "microbatches": "only pp runs parts of a batch one after another",
    "schedule": "only pp has stages",
    "split_points": "only pp has stages",
    "balance": "only pp has stages",
    "tp_plan": "only tp splits layers by features",
    "sequence_parallel": "only tp has split layers, between which it splits the sequence",
    "exact": "only ddp, zero1, zero2, fsdp, hsdp and DeepSpeed's stages 1 and 2 divide a batch "
    "behind a cell that sees all of it",
    "mesh": "all its ranks are data parallel",
    "sync_batchnorm": "batch statistics are not computed by ranks there",
}
"""Why an option is refused, unless the strategy has a more specific reason."""


@dataclass(frozen=True)
class OptionSupport:
    """The fields of ``StrategyOptions`` that a strategy supports.

    Attributes:
        supported: names of the fields that it supports.
        handled: those of them that it applies itself; the rank applies the others.
        reasons: why it does not support a field; the key ``precision=fp16`` is about a single
            value.
        alternatives: the strategy to suggest for such a field or value.
    """

    supported: frozenset[str] = COMMON_OPTIONS
    handled: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict)
    alternatives: Mapping[str, str] = field(default_factory=dict)

    def reason(self, option: str, value: object = None) -> str:
        """Return why ``option`` is refused with ``value``; empty if it is not."""
        if option == "exact" and value == "never":  # it asks for nothing
            return ""
        if option in self.supported:
            return self.reasons.get(f"{option}={value}", "")
        return self.reasons.get(option) or REASONS.get(option, "this strategy has no such option")

    def alternative(self, option: str, value: object = None) -> str | None:
        """Return the strategy to suggest for ``option`` with ``value``; None if there is none."""
        own = self.alternatives.get(f"{option}={value}") or self.alternatives.get(option)
        return own or DDP_FOR.get(option)
