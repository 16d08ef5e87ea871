"""Chooses the simplest strategy that fits, with the reason in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from nbmgpu.formatting import format_bytes

from .advice import Estimate, Fit
from .interval import Interval, format_interval
from .row_kinds import SLICED
from .training_setup import TrainingSetup

USABLE_FRACTION = 0.9
"""Fraction of the free memory that a strategy may use to count as fitting."""

PREFERENCE = ("ddp", "zero1", "zero2", "fsdp")
"""The strategies that split batches, the simplest and fastest first."""

MODEL_PARALLEL = ("sp --mesh", "sp", "fsdp+tp", "fsdp+tp --mesh", "tp --mesh", "tp", SLICED)
"""Rows that split samples or layers, those that communicate least first.  ``pp`` is not among them:
it is for slow links, of which nothing is known here."""

PIPELINES = (
    "fsdp+pp", "fsdp+pp --mesh", "fsdp+tp+pp", "fsdp+tp+pp --mesh", "tp+pp", "tp+pp --mesh",
)  # fmt: skip
"""Rows whose ranks wait for each other besides, for where none of the others fits."""

BETWEEN_NODES = (
    ("ddp", "hsdp --mesh"),
    ("tp --mesh", "sp --mesh"),
    ("fsdp+pp --mesh", "fsdp+tp+pp --mesh", "tp+pp --mesh"),
)
"""Rows for nodes with a slow link: shards and parts of layers stay inside of a node, and between
nodes are gradients of shards, or activations of one layer."""

OFFLOADED = ("fsdp --cpu-offload", "deepspeed_stage_3_offload")
"""Rows that need the memory of the host."""


MORE_RANKS = "With more ranks each needs less"


@dataclass(frozen=True)
class Recommendation:
    """The recommended strategy.

    Attributes:
        name: name of its row; empty if nothing fits.
        reason: the reason, in one sentence.
        checkpointing: whether it fits only with ``--checkpointing``.
    """

    name: str
    reason: str
    checkpointing: bool = False


NOTHING_TO_TRAIN = Recommendation(
    "", "No parameter requires a gradient, so there is nothing to train."
)


def classify_fit(needed: Interval, free: int | None, complete: bool) -> Fit:
    """Return whether ``needed`` bytes fit into ``free``.

    Args:
        needed: estimated memory of a rank.
        free: free memory of a rank; None if unknown.
        complete: whether ``needed`` includes activations.
    """
    if free is None:
        return "unknown"
    if needed.low > free:
        return "no"
    if not complete:
        return "unknown"
    return "fits" if needed.high <= USABLE_FRACTION * free else "tight"


def recommend(
    rows: Sequence[Estimate],
    setup: TrainingSetup,
    free: int | None,
    checkpointed_rows: Sequence[Estimate],
    batch_known: bool = False,
    slow_link: bool = False,
) -> Recommendation:
    """Choose a strategy from ``rows``.

    A row that fits is preferred to a tight one, checkpointing to splitting samples or layers, and
    that to offloading.

    Args:
        rows: the estimates of all strategies.
        setup: what is trained, and on what.
        free: free memory of a rank in bytes; None if unknown.
        checkpointed_rows: the estimates with ``--checkpointing``; empty if not needed.
        batch_known: whether a batch was given.
        slow_link: whether there are several nodes, with a slow link between them.
    """
    first = BETWEEN_NODES if slow_link else ()
    candidates, ddp = _by_preference(rows, first), next(row for row in rows if row.name == "ddp")
    if not candidates:
        return Recommendation("", f"No strategy supports these options; ddp: {ddp.problem}.")
    if setup.ranks == 1 and ddp.line and ddp.fits in ("fits", "unknown"):
        return Recommendation(
            "ddp", "There is one device, so nothing can be sharded; ddp has the least overhead."
        )
    if free is None and not ddp.line:
        name = next(iter(candidates))
        text = f"The free memory is unknown; {name} is the simplest available strategy."
        return Recommendation(name, text)
    if free is None:
        text = (
            "The free memory is unknown; ddp is the simplest strategy, without extra communication."
        )
        return Recommendation("ddp", text)
    if setup.activations is None:
        return _recommend_by_states(candidates, free, batch_known)
    alternatives = ((candidates, False), (_by_preference(checkpointed_rows, first), True))
    for names in (*first, PREFERENCE, MODEL_PARALLEL, PIPELINES):
        for by_name, checkpointing in alternatives:
            for name, row in by_name.items():
                if row.fits == "fits" and _is_among(name, names):
                    text = _reason(name, ddp, setup, free, checkpointing)
                    return Recommendation(name, text, checkpointing)
    for by_name, checkpointing in alternatives:
        if tight := names_on_device(by_name.values(), "tight"):
            tight = [name for name in tight if name not in PIPELINES] or tight
            least = min(tight, key=lambda name: by_name[name].high)
            text = _tight_reason(by_name[least], free, checkpointing)
            return Recommendation(least, text, checkpointing)
    for by_name, checkpointing in alternatives:
        for name, row in by_name.items():
            if row.fits in ("fits", "tight"):
                offloaded = _offload_reason(row, setup)
                text = f"It does not fit even when sharded over {setup.ranks} ranks; {offloaded}."
                return Recommendation(name, text, checkpointing)
    least = min(candidates, key=lambda name: candidates[name].low)
    needed = format_bytes(candidates[least].low)
    text = (
        f"Nothing fits: {least} still needs {needed} of {format_bytes(free)} on each of "
        f"{setup.ranks} ranks. {_remedy(candidates[least], free)}."
    )
    return Recommendation("", text)


def _is_among(name: str, names: Iterable[str]) -> bool:
    """Whether a row is one of ``names``, of which ``tp --mesh`` means any mesh."""
    return any(
        name == each or (each.endswith("--mesh") and name.startswith(each)) for each in names
    )


def names_on_device(rows: Iterable[Estimate], fits: Fit) -> list[str]:
    """Return the names of the rows with this ``fits`` that do not offload to the host."""
    return [row.name for row in rows if row.fits == fits and "offload" not in row.name]


def _tight_reason(row: Estimate, free: int, checkpointing: bool) -> str:
    how = " with activations recomputed" if checkpointing else ""
    needed = f"{format_interval(row.low, row.high)} of {format_bytes(free)}"
    return f"Nothing is certain to fit; {row.name}{how} needs the least, {needed}: try it."


def _by_preference(rows: Sequence[Estimate], first: Iterable[Sequence[str]]) -> dict[str, Estimate]:
    """Return the available rows that can be recommended by name, in the order of preference.

    Those of ``first``, by groups, come before all others.
    """
    order = (*chain(*first), *PREFERENCE, *MODEL_PARALLEL, *PIPELINES, *OFFLOADED)
    return {
        row.name: row for name in order for row in rows if row.line and _is_among(row.name, [name])
    }


def _recommend_by_states(
    candidates: dict[str, Estimate], free: int, batch_known: bool
) -> Recommendation:
    """Choose the first strategy that leaves half of the memory to activations."""
    how = (
        "they cannot be estimated from the batch"
        if batch_known
        else "give batch= or loader= to estimate them"
    )
    available = format_bytes(free)
    for name, row in candidates.items():
        if row.low <= free / 2:
            text = (
                f"Without activations {name} needs {format_bytes(row.low)} of {available}, "
                f"which leaves most of it to activations; {how}."
            )
            return Recommendation(name, text)
    least = min(candidates, key=lambda name: candidates[name].low)
    row = candidates[least]
    needed = format_bytes(row.low)
    if row.fits == "no":
        text = f"Nothing fits: {least} needs {needed} of {available}. {MORE_RANKS}."
        return Recommendation("", text)
    text = f"{least} leaves the most memory to activations: it needs {needed} without them."
    return Recommendation(least, text)


def _reason(name: str, ddp: Estimate, setup: TrainingSetup, free: int, checkpointing: bool) -> str:
    available = format_bytes(free)
    if name == "ddp" and not checkpointing:
        most = format_bytes(ddp.high)
        text = (
            f"Everything fits on each rank (at most {most} of {available}): "
            "with ddp nothing is sharded."
        )
        if setup.model_size.elements < 1_000_000:
            text = text[:-1] + "; so small a model gains little from several ranks."
        return text
    problem = f"ddp needs up to {format_bytes(ddp.high)} of {available}"
    if not ddp.line:
        problem = f"ddp is not available: {ddp.problem}"
    states = format_bytes(setup.model_size.all_states)
    strategy = name.partition(" --mesh")[0]
    alone = "neither sharding nor splitting layers alone is enough"
    solution = {
        "ddp": "everything stays replicated",
        "zero1": f"zero1 shards the {states} of optimizer states",
        "zero2": "zero2 shards gradients and optimizer states, and gathers parameters only once",
        "fsdp": "fsdp shards parameters, gradients and optimizer states",
        "hsdp": "hsdp shards parameters, gradients and optimizer states inside of each node, and "
        "only gradients of shards go to other nodes",
        "sp": "the activations of a sequence are too many for one rank even where they are "
        "recomputed, and sp splits each sequence over ranks",
        "tp": "what fsdp gathers, or activations, are too large for one rank, and tp splits each "
        "layer over ranks",
        SLICED: "activations between the layers that tp splits are too large for one rank, and "
        "--sequence-parallel splits them, too",
        "fsdp+tp": "what fsdp gathers, or activations, are too large for one rank, and fsdp+tp "
        "splits layers before it shards them",
        "fsdp+pp": f"{alone}, and fsdp+pp divides layers over stages before it shards them",
        "fsdp+tp+pp": f"{alone}, and fsdp+tp+pp divides layers over stages, splits and shards them",
        "tp+pp": f"{alone}, and tp+pp divides layers over stages, and splits them",
    }[strategy]
    if checkpointing:
        solution += ", and recomputing activations saves memory for about a third more time"
    return f"{problem}; {solution}."


def _offload_reason(row: Estimate, setup: TrainingSetup) -> str:
    verb = "fits" if row.fits == "fits" else "may fit"
    needed = format_bytes(setup.model_size.model_states)
    return f"with {needed} of it in the memory of the host it {verb}, but many times slower"


def _remedy(row: Estimate, free: int) -> str:
    """Return what would help where no strategy fits."""
    acts = sum(part.low for part in row.parts if part.kind == "activations")
    if acts > free / 2:
        advice = f"Activations are {format_bytes(acts)} of that: use smaller batches"
    else:
        advice = MORE_RANKS
    return advice
