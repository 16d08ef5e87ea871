"""The largest global batch that should fit."""

from __future__ import annotations

from collections.abc import Callable

from .advice import Estimate
from .recommendation import USABLE_FRACTION
from .training_setup import TrainingSetup

MAX_TRIALS = 3
"""Maximum number of trial steps in the search for the largest batch."""

MAX_BATCH = 100_000
"""Samples.  Larger global batches are not reported: memory is not the limit then."""


def largest_batch(
    row: Estimate,
    setup: TrainingSetup,
    free: int | None,
    peak_memory: Callable[[int], float] | None,
) -> int | None:
    """Return the largest global batch, in samples, that should fit.

    The result is rounded down to two significant digits, as the estimate is no more precise.

    Args:
        row: the estimate of the strategy.
        setup: what is trained, with the activations of some number of samples.
        free: free memory of a rank in bytes.
        peak_memory: returns the peak bytes of a rank for a number of samples, by a fake step.
            Without it all activations are assumed to be proportional to the samples, which
            underestimates the batch.

    Returns:
        None if unknown, if not even one sample fits, or if it exceeds ``MAX_BATCH``.
    """
    acts = setup.activations
    if free is None or acts is None or not row.parts:
        return None
    usable = USABLE_FRACTION * free
    row_activations = next(part.high for part in row.parts if part.kind == "activations")
    per_sample = acts.peak.high / acts.samples
    left = usable - (row.high - row_activations)
    if not left >= per_sample > 0:
        return None
    samples = int(left // per_sample)
    limit = -(-MAX_BATCH // setup.data_parallel_ranks)
    if peak_memory is not None and row.high <= usable and samples < limit:
        found = _search_samples(acts.samples, row.high, usable, limit, peak_memory)
        samples = max(samples, found)
    most = samples * setup.data_parallel_ranks
    if most >= MAX_BATCH:
        return None
    unit: int = 10 ** max(0, len(str(most)) - 2)
    return most // unit * unit


def _search_samples(
    samples: int,
    peak: float,
    usable: float,
    limit: int,
    peak_memory: Callable[[int], float],
) -> int:
    """Return a number of samples per rank that fits, at most ``limit``; 0 if none was found.

    The peak is the maximum of several linear functions of the samples, and so convex.  A secant
    lies above it between its two points.  So if the second point exceeds ``usable``, the samples
    at which the secant reaches ``usable`` fit.

    Args:
        samples: number of samples that fits.
        peak: peak bytes for ``samples``.
        usable: bytes that may be used.
        limit: maximum number of samples.
        peak_memory: returns the peak bytes for a number of samples.
    """
    other, other_peak = 2 * samples, peak_memory(2 * samples)
    for _ in range(MAX_TRIALS):
        slope = (other_peak - peak) / (other - samples)
        guess = limit if slope <= 0 else samples + int((usable - peak) / slope)
        guess = min(guess, limit)
        other, other_peak = guess, peak_memory(guess)
        if other_peak <= usable:
            return guess
    return 0
