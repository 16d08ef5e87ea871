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
from .step_file import END, FAILED, POLL, StepReader

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
    """

    step: int
    parameter: int | None = None
    error: float = float("inf")


class StepComparison:
    """The steps of all ranks, read in order.

    Attributes:
        steps: number of steps that were compared, and are equal.
        tolerance: relative difference of a gradient that may be due to rounding.
        is_over: whether no step can be compared any more.
    """

    def __init__(self, run_folder: Path, world_size: int) -> None:
        """Compare with the ``world_size`` ranks of the run in ``run_folder``."""
        self.steps = 0
        self.tolerance = FLOAT32
        self.is_over = False
        self._readers = [StepReader(step_file(run_folder, rank)) for rank in range(world_size)]
        self._largest = 0.0

    def compare(self, here: Tensor, is_over: Callable[[], bool]) -> Difference | None:
        """Compare the next step; wait for ranks that have not reached it.

        Where the ranks take no further step, nothing is compared: the cell may end by a clock.

        Args:
            here: sketches of the gradients on one device.
            is_over: returns whether to wait no longer.
        """
        step, there = self.steps + 1, torch.zeros_like(here)
        for reader in self._readers:
            record = self._wait(reader, is_over)
            if record is None or record[0] in (END, FAILED):
                self.is_over = True
                return None
            parameters, sketches = record
            if parameters != len(here):
                return Difference(step)
            if sketches is not None:
                there += sketches
        errors = relative_errors(here, there)
        error = float(errors.max()) if len(errors) else 0.0
        if error > max(self.tolerance, min(GROWTH * self._largest, LARGEST)):
            return Difference(step, int(errors.argmax()), error)
        self._largest = max(self._largest, error)
        self.steps = step
        return None

    def has_all(self, is_over: Callable[[], bool]) -> bool:
        """Return whether the ranks take no further step; see ``compare``."""
        records = [self._wait(reader, is_over) for reader in self._readers]
        return all(record is not None and record[0] == END for record in records)

    def _wait(
        self, reader: StepReader, is_over: Callable[[], bool]
    ) -> tuple[int, Tensor | None] | None:
        while (record := reader.next_step()) is None and not is_over():
            if any(other.has_failed for other in self._readers):  # the rest may wait for it
                return None
            time.sleep(POLL)
        return record
