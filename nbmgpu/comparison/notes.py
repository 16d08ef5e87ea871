"""Notes that explain the rows of a ``Comparison``, and why measurements are incomplete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nbmgpu.formatting import format_count
from nbmgpu.runs.engine_plugins import DEFAULT_ENGINE

from .trial import Trial

if TYPE_CHECKING:
    from .comparison import Comparison

BUSY = 1.5
"""Load average per core above which other processes disturb the times."""


def notes(comparison: Comparison) -> list[str]:
    """Return notes that explain the rows."""
    rows = comparison.rows
    return [
        *_about_steps(comparison),
        *_about_sharding(rows),
        *_about_losses(rows),
        *_about_times(comparison),
        *_about_memory(comparison),
        *_about_cores(comparison),
        *_about_devices(comparison),
        *_about_load(comparison),
        *_about_left_out(comparison),
    ]


def reasons(rows: Iterable[Trial]) -> list[str]:
    """Return why measurements are incomplete."""
    return [f"{label(row)}: {row.reason}" for row in rows if row.reason]


def label(row: Trial) -> str:
    """Return what a note calls the row."""
    if row.is_baseline or not row.ranks:
        return row.name
    of = f" of {format_count(row.nodes, 'node')}" if row.nodes > 1 else ""
    return f"{row.name} on {row.ranks}{of}"


def _about_steps(comparison: Comparison) -> Iterable[str]:
    taken = sorted({row.timing.steps for row in comparison.rows if row.is_timed})
    asked = comparison.request.steps
    if taken and taken[-1] < asked:
        yield f"The cell took {taken[-1]} steps, fewer than the {asked} requested."
    if len(taken) > 1:
        counts = ", ".join(map(str, taken))
        yield f"Runs took different numbers of steps ({counts}): their losses are not comparable."


def _about_sharding(rows: Iterable[Trial]) -> Iterable[str]:
    whole = [row for row in rows if not row.sharded]
    if sequences := [label(row) for row in whole if row.name in ("sp", "cp")]:
        yield (
            f"{', '.join(sequences)}: no layer was called with a sequence that could be split, so "
            "every rank did all of the work."
        )
    if batches := [label(row) for row in whole if row.name not in ("sp", "cp")]:
        yield (
            f"{', '.join(batches)}: no training loader was sharded, so every rank did all of the "
            "work. Iterate over a torch DataLoader to share it."
        )


def _about_losses(rows: Iterable[Trial]) -> Iterable[str]:
    for row in rows:
        if row.is_baseline or row.loss.difference is None:
            continue
        if row.loss.explanation:
            yield f"{label(row)} {row.loss.explanation}: its loss may differ from one device's."
        elif not row.loss.agrees:
            yield f"{label(row)}: its loss differs from one device's by more than rounding."


def _about_times(comparison: Comparison) -> Iterable[str]:
    timed = [row for row in comparison.rows if row.is_timed]
    if timed:
        steps, left_out = max((row.timing.steps, row.timing.warm_up) for row in timed)
        first = "the first is" if left_out == 1 else f"the first {left_out} are"
        yield (
            f"A step is the median of {steps - left_out} of {steps}; {first} warm-up. "
            "Loss is that of the last batch; start-up is the time until all ranks run the cell."
        )


def _about_memory(comparison: Comparison) -> Iterable[str]:
    if any(row.memory.peak is not None for row in comparison.rows):
        yield (
            "Held: tensors of a rank between steps. Peak memory: the most that torch allocated on "
            "its GPU."
            if comparison.on_gpu
            else "Held: tensors of a rank between steps, as on a GPU. Peak memory: of the process, "
            "above what it used before the cell's data arrived. It includes its heap and gloo, so "
            "it is not that of a GPU."
        )


def _about_cores(comparison: Comparison) -> Iterable[str]:
    if comparison.on_gpu:
        return
    if comparison.request.engine != DEFAULT_ENGINE:
        yield "CPU times do not predict GPU times. Losses and held memory carry over."
        return
    cores = comparison.machine.cores
    most = max((row.ranks for row in comparison.rows if row.is_timed), default=1)
    if most > 1:
        shared = f"Ranks share {format_count(cores, 'core')}, and one device uses all of them"
        if most > cores:
            shared += f"; {most} ranks are more than the cores, and wait for one another"
        yield f"{shared}: CPU times do not predict GPU times. Losses and held memory carry over."


def _about_devices(comparison: Comparison) -> Iterable[str]:
    gpus = [e.options.gpus for e in comparison.request.entries if e.options and not e.is_baseline]
    listed = next((each for each in gpus if isinstance(each, tuple)), None)
    if comparison.request.kind == "compare" and listed and len(listed) > 1:
        names = ",".join(map(str, listed))
        yield (
            f"--gpus {names} selects {len(listed)} devices. To compare numbers of ranks: "
            f"%%mgpu scale --gpus {names}."
        )


def _about_load(comparison: Comparison) -> Iterable[str]:
    if comparison.load > BUSY and comparison.request.engine == DEFAULT_ENGINE:
        yield (
            f"Other processes were running ({comparison.load:.1f} per core before the first run): "
            "do not trust the times."
        )


def _about_left_out(comparison: Comparison) -> Iterable[str]:
    if comparison.left_out:
        yield f"{comparison.why}: {format_count(comparison.left_out, 'run')} not made."
