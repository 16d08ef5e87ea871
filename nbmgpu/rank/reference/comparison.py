"""Compares the optimizer steps of one device with those of the ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nbmgpu.runs.reference import step_file

from .sketches import relative_errors
from .step_file import END, FAILED, POLL, StepReader, StepRecord
from .value_comparison import Batches, OtherValue, ValueComparison
from .values import Values

FLOAT32, TF32, HALF = 1e-4, 1e-2, 5e-2
"""Relative differences of a gradient that may be due to rounding, by what it is computed in."""

GROWTH, LARGEST = 100.0, 0.1
"""A step multiplies differences by less than this, if they are due to rounding, up to a limit."""


@dataclass(frozen=True)
class Difference:
    """The first step at which ranks do something else than one device.

    Attributes:
        step: its number, from 1.
        parameter: index of the parameter, among those of its optimizer, whose gradient differs
            most; None if the optimizer has other parameters on ranks.
        error: distance of the gradients, divided by the norm of that on one device.
        has_grown: whether it has grown from step to step, as rounding does where training diverges.
    """

    step: int
    parameter: int | None = None
    error: float = float("inf")
    has_grown: bool = False


@dataclass(frozen=True)
class ValueDifference:
    """The first value that the cell keeps and would not have on one device.

    Attributes:
        step: the number of the optimizer step before which it was seen, from 1.
        value: where it is, and what.
    """

    step: int
    value: OtherValue


class StepComparison:
    """The steps of all ranks, read in order.

    Attributes:
        steps: number of steps that were compared, and are equal.
        tolerance: relative difference of a gradient that may be due to rounding.
        is_over: whether no step can be compared any more.
        has_all: whether all steps of the ranks were compared.
        values: compares values, too; None to compare gradients alone.
    """

    def __init__(self, run_folder: Path, world_size: int) -> None:
        """Compare with the ``world_size`` ranks of the run in ``run_folder``."""
        self.steps = 0
        self.tolerance = FLOAT32
        self.is_over = self.has_all = False
        self.values: ValueComparison | None = None
        self._readers = [StepReader(step_file(run_folder, rank)) for rank in range(world_size)]
        self._largest = 0.0
        self._batches: Batches = frozenset()

    def compare(
        self, optimizer: int, here: Tensor, values: Values, is_over: Callable[[], bool]
    ) -> Difference | ValueDifference | None:
        """Compare the next step; wait for ranks that have not reached it.

        Where the ranks take no further step, nothing is compared: the cell may end by a clock.

        Args:
            optimizer: its number.
            here: sketches of the gradients on one device.
            values: small values that the cell keeps there.
            is_over: returns whether to wait no longer.
        """
        step, there = self.steps + 1, torch.zeros_like(here)
        records: list[StepRecord] = []
        for reader in self._readers:
            record = self._wait(reader, is_over, optimizer)
            if record is None or record.parameters in (END, FAILED):
                self.is_over = True
                return None
            records.append(record)
            if record.parameters != len(here):
                return Difference(step)
            if record.sketches is not None:
                there += record.sketches
        errors = relative_errors(here, there)
        error = float(errors.max()) if len(errors) else 0.0
        if error > max(self.tolerance, min(GROWTH * self._largest, LARGEST)):
            has_grown = step > 1 and error < GROWTH**2 * self._largest
            return Difference(step, int(errors.argmax()), error, has_grown)
        if (found := self._differing_value(step, values, records)) is not None:
            return found
        self._largest = max(self._largest, error)
        self.steps = step
        return None

    def compare_end(self, values: Values, is_over: Callable[[], bool]) -> ValueDifference | None:
        """Compare the small values that the cell leaves, if the ranks take no further step."""
        waited = [self._wait(reader, is_over) for reader in self._readers]
        records = [record for record in waited if record is not None and record.parameters == END]
        self.has_all = len(records) == len(self._readers)
        return self._differing_value(self.steps, values, records) if self.has_all else None

    def _differing_value(
        self, step: int, values: Values, records: list[StepRecord]
    ) -> ValueDifference | None:
        if self.values is None:
            return None
        samples, wholes = zip(*(record.samples for record in records), strict=True)
        self._batches |= {(max(wholes), samples)}
        found = self.values.compare(values, [record.values for record in records], self._batches)
        return None if found is None else ValueDifference(step, found)

    def _wait(
        self, reader: StepReader, is_over: Callable[[], bool], optimizer: int | None = None
    ) -> StepRecord | None:
        while (record := reader.next_step(optimizer)) is None and not is_over():
            if any(other.has_failed for other in self._readers):  # the rest may wait for it
                return None
            time.sleep(POLL)
        return record
