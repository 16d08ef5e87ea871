"""What is exported: a cell, the cells before it, and the objects that they have made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbmgpu.environment.random_state import RandomState
from nbmgpu.options.run_options import RunOptions


@dataclass(frozen=True)
class ExportRequest:
    """A cell to be exported.

    Attributes:
        cell: its source.
        options: of its run.
        devices: one name per rank (``cuda:1``, ``cpu``).
        values: the notebook's objects by name.
        cells: sources of earlier cells, in order of execution.
        transform: turns magics and shell lines into Python.
        at_start: whether ``values`` are as they were before the cell; else the cell has run since.
        random: states of random number generators before the cell; None if they are not known.
        origin: what is exported, for the header of the script.
        nodes: number of machines.
        restarted: why the run has started again with whole batches, as a sentence without a full
            stop; empty if it has not.
    """

    cell: str
    options: RunOptions
    devices: tuple[str, ...]
    values: Mapping[str, Any] = field(repr=False)
    cells: tuple[str, ...]
    transform: Callable[[str], str]
    at_start: bool
    random: RandomState | None = field(default=None, repr=False)
    origin: str = "a cell"
    nodes: int = 1
    restarted: str = ""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    @property
    def on_gpu(self) -> bool:
        """Whether ranks have GPUs."""
        return self.devices[0] != "cpu"
