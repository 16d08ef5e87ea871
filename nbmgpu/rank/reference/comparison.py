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
from .step_file import END, StepReader

FLOAT32, TF32, HALF = 1e-4, 1e-2, 5e-2
"""Relative differences of a gradient that may be due to rounding, by what it is computed in."""

GROWTH = 100.0
"""A step multiplies differences by less than this, if they are due to rounding."""

POLL = 0.002
"""Seconds between two looks whether the ranks have reached a step."""


@dataclass(frozen=True)
class Difference:
    """The first step at which ranks do something else than one device.

    Attributes:
        step: its number, from 1.
        parameter: index of the parameter, among those of its optimizer, whose gradient differs
            most; None if ranks have taken another number of steps, or step other parameters.
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
    """

    def __init__(self, run_folder: Path, world_size: int) -> None:
        """Compare with the ``world_size`` ranks of the run in ``run_folder``."""
        self.steps = 0
        self.tolerance = FLOAT32
        self._readers = [StepReader(step_file(run_folder, rank)) for rank in range(world_size)]
        self._largest = 0.0

    def compare(self, here: Tensor, is_over: Callable[[], bool]) -> Difference | None:
        """Compare the next step; wait for ranks that have not reached it.

        Args:
            here: sketches of the gradients on one device.
            is_over: returns whether to wait no longer; the step then counts as equal.
        """
        step, there = self.steps + 1, torch.zeros_like(here)
        for reader in self._readers:
            while (record := reader.next_step()) is None:
                if is_over():
                    return None
                time.sleep(POLL)
            parameters, sketches = record
            if parameters != len(here):  # another optimizer, or the end of the cell
                return Difference(step)
            if sketches is not None:
                there += sketches
        errors = relative_errors(here, there)
        error = float(errors.max()) if len(errors) else 0.0
        if error > max(self.tolerance, GROWTH * self._largest):
            return Difference(step, int(errors.argmax()), error)
        self._largest = max(self._largest, error)
        self.steps = step
        return None

    def compare_end(self, is_over: Callable[[], bool]) -> Difference | None:
        """Compare the end of the cell: ranks may take no further step."""
        for reader in self._readers:
            while (record := reader.next_step()) is None:
                if is_over():
                    return None
                time.sleep(POLL)
            if record[0] != END:
                return Difference(self.steps + 1)
        return None
