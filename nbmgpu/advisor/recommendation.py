"""The choice: the plainest strategy that fits, and the reason in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nbmgpu.formatting import format_bytes

from .advice import Estimate, Fit
from .interval import Span, span_in_words
from .memory_model import Case

RESERVE = 0.9
"""The part of free memory that may be planned with."""

TRIES = 3
"""How often a largest batch is played to be found."""

PLENTY = 100_000
"""Samples of which nobody makes a batch: memory is no limit then."""

ORDER = ("ddp", "zero1", "zero2", "fsdp", "fsdp --cpu-offload", "deepspeed_stage_3_offload")
"""The strategies that are recommended, the plainest and fastest first."""

MISSING = (
    "What would help is to split the work inside layers or between them (tensor, pipeline or "
    "sequence parallelism), which nbmgpu does not have"
)


@dataclass(frozen=True)
class Choice:
    """What to take, and why; ``checkpointing`` if it fits only so."""

    name: str
    reason: str
    checkpointing: bool = False


NOTHING_TRAINS = Choice("", "No parameter of it requires a gradient: there is nothing to train.")


def judge(held: Span, free: int | None, whole: bool) -> Fit:
    """Say whether ``held`` fits into ``free``; not ``whole`` means activations are left out."""
    if free is None:
        return "unknown"
    if held.low > free:
        return "no"
    if not whole:
        return "unknown"
    return "fits" if held.high <= RESERVE * free else "tight"


def choose(
    rows: Sequence[Estimate],
    case: Case,
    free: int | None,
    recomputed: Sequence[Estimate],
    batch_known: bool = False,
) -> Choice:
    """Choose from ``rows``; ``recomputed`` are the same with ``--checkpointing``, if that is new.

    A row that fits comes before one that may; recomputing before the host's memory.
    """
    known, ddp = _ordered(rows), next(row for row in rows if row.name == "ddp")
    if not known:
        return Choice("", f"No strategy can do all of this; of ddp: {ddp.why}.")
    if case.ranks == 1 and ddp.line and ddp.fits in ("fits", "unknown"):
        return Choice("ddp", "There is one device, so nothing to share out; ddp adds the least.")
    if free is None and not ddp.line:
        name = next(iter(known))
        return Choice(
            name, f"Nobody knows what is free here; of what can be had {name} is plainest."
        )
    if free is None:
        text = "Nobody knows what is free here; ddp is the plainest, and sends nothing twice."
        return Choice("ddp", text)
    if case.activations is None:
        return _by_states(known, free, batch_known)
    tried = ((known, False), (_ordered(recomputed), True))
    for candidates, checkpointing in tried:
        for name in on_devices(candidates.values(), "fits"):
            return Choice(name, _reason(name, ddp, case, free, checkpointing), checkpointing)
    for candidates, checkpointing in tried:
        if tight := on_devices(candidates.values(), "tight"):
            least = min(tight, key=lambda name: candidates[name].high)
            text = _perhaps(candidates[least], free, checkpointing)
            return Choice(least, text, checkpointing)
    for candidates, checkpointing in tried:
        for name, row in candidates.items():
            if row.fits in ("fits", "tight"):
                how = _shards_away(row, case)
                text = f"Even sharded over {case.ranks} ranks it does not fit; {how}."
                return Choice(name, text, checkpointing)
    least = min(known, key=lambda name: known[name].low)
    text = (
        f"Nothing fits: {least} still needs {format_bytes(known[least].low)} of {format_bytes(free)} "
        f"on each of {case.ranks} ranks. {_way_out(known[least], free)}."
    )
    return Choice("", text)


def on_devices(rows: Iterable[Estimate], fits: Fit) -> list[str]:
    """Return the names of those rows that ``fits`` without the memory of the host."""
    return [row.name for row in rows if row.fits == fits and "offload" not in row.name]


def _perhaps(row: Estimate, free: int, checkpointing: bool) -> str:
    how = " with activations recomputed" if checkpointing else ""
    span = f"{span_in_words(row.low, row.high)} of {format_bytes(free)}"
    return f"Nothing fits for sure; {row.name}{how} needs the least, {span}: try it."


def _ordered(rows: Sequence[Estimate]) -> dict[str, Estimate]:
    known = {row.name: row for row in rows if row.line}
    return {name: known[name] for name in ORDER if name in known}


def _by_states(known: dict[str, Estimate], free: int, batch_known: bool) -> Choice:
    """Choose by states alone: the first that leaves half of the memory to activations."""
    how = "the batch does not tell them" if batch_known else "batch= or loader= would tell them"
    for name, row in known.items():
        if row.low <= free / 2:
            text = (
                f"Without activations {name} needs {format_bytes(row.low)} of {format_bytes(free)}, which "
                f"leaves most of it to them; {how}."
            )
            return Choice(name, text)
    least = min(known, key=lambda name: known[name].low)
    row = known[least]
    if row.fits == "no":
        text = f"Nothing fits: {least} needs {format_bytes(row.low)} of {format_bytes(free)}. {MISSING}."
        return Choice("", text)
    text = f"{least} leaves the most to activations: it needs {format_bytes(row.low)} before them."
    return Choice(least, text)


def _reason(name: str, ddp: Estimate, case: Case, free: int, checkpointing: bool) -> str:
    room = format_bytes(free)
    if name == "ddp" and not checkpointing:
        most = format_bytes(ddp.high)
        text = (
            f"All of it fits on each rank (at most {most} of {room}): with ddp nothing is sharded."
        )
        if case.counted.elements < 1_000_000:
            text = text[:-1] + "; so small a model gains little from several ranks."
        return text
    trouble = f"ddp needs up to {format_bytes(ddp.high)} of {room}"
    if not ddp.line:
        trouble = f"ddp cannot be had: {ddp.why}"
    states = case.counted.all_states
    cure = {
        "ddp": "everything stays whole",
        "zero1": f"zero1 leaves each rank its part of the {format_bytes(states)} of optimizer states",
        "zero2": "zero2 shards gradients and optimizer states, and gathers parameters only once",
        "fsdp": "fsdp leaves each rank its part of parameters, gradients and optimizer states",
    }[name]
    if checkpointing:
        cure += ", and recomputing activations makes room, for about a third more time"
    return f"{trouble}; {cure}."


def _shards_away(row: Estimate, case: Case) -> str:
    does = "it does" if row.fits == "fits" else "it may"
    counted = case.counted
    need = format_bytes(counted.parameters + counted.gradients + counted.all_states)
    return f"with {need} of it in the memory of the host {does}, many times slower"


def _way_out(row: Estimate, free: int) -> str:
    """Say what would be the right answer where no strategy of this package is."""
    acts = sum(part.low for part in row.parts if part.kind == "activations")
    if acts > free / 2:
        return f"Activations are {format_bytes(acts)} of that: take smaller batches. {MISSING}"
    return f"More ranks would hold less each. {MISSING}"


def largest_batch(
    row: Estimate, case: Case, free: int | None, high_of: Callable[[int], float] | None
) -> int | None:
    """Return how many samples of all ranks fit for sure.

    Two digits of it, and the rest zeros: nobody knows more.  None if that is unknown, if not
    even one fits, or if it is more than anybody makes a batch of.

    Args:
        row: the strategy.
        case: what was asked, with the activations of some samples.
        free: bytes that are free for each rank.
        high_of: the bytes that so many samples on a rank take at most, played; without it
            activations are taken to grow as samples do, also what does not grow at all.
    """
    acts = case.activations
    if free is None or acts is None or not row.parts:
        return None
    room = RESERVE * free
    mine = next(part.high for part in row.parts if part.kind == "activations")
    each = acts.alone.high / acts.samples
    if not room - (row.high - mine) >= each > 0:
        return None
    sure = int((room - (row.high - mine)) // each)
    plenty = -(-PLENTY // case.ranks)
    if high_of is not None and row.high <= room and sure < plenty:
        sure = max(sure, _by_trial(acts.samples, row.high, room, plenty, high_of))
    most = sure * case.ranks
    if most >= PLENTY:
        return None
    unit: int = 10 ** max(0, len(str(most)) - 2)
    return most // unit * unit


def _by_trial(
    samples: int, high: float, room: float, plenty: int, high_of: Callable[[int], float]
) -> int:
    """Return how many samples fit into ``room``, 0 if that was not found; ``plenty`` is enough.

    What is needed is the largest of several sums, each of which grows in a straight line.  So
    a line between two points lies above it: what fits by a line to a point beyond ``room`` does.
    """
    other, more = 2 * samples, high_of(2 * samples)
    for _ in range(TRIES):
        grows = (more - high) / (other - samples)
        guess = plenty if grows <= 0 else samples + int((room - high) / grows)
        guess = min(guess, plenty)
        other, more = guess, high_of(guess)
        if more <= room:
            return guess
    return 0
