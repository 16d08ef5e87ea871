"""The file into which a rank writes the sketches of its gradients, a record per step."""

from __future__ import annotations

import json
import struct
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from nbmgpu.runs import reference

from .sketches import COLUMNS, sketches_of
from .values import CellValues, Values

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.strategies.base import Strategy

HEADER = struct.Struct("<qqqq")
"""Numbers of the optimizer, of parameters, and of rows that follow, which are all of them, or
none from a rank without parts; bytes of values behind them."""

END = -1
"""Number of parameters in the last record of a cell that has finished."""

FAILED = -2
"""The same of a cell that has raised an exception."""

POLL = 0.002
"""Seconds between two looks at what others have written."""

MOST_BYTES = 1 << 14
"""Bytes of values that are recorded in a step."""

MOST_STEPS = 256
"""Steps that are recorded at most."""


@dataclass(frozen=True)
class StepRecord:
    """A step of a rank.

    Attributes:
        optimizer: its number.
        parameters: their number; or ``END`` or ``FAILED`` instead of a step.
        sketches: of their gradients, shape (parameters, ``COLUMNS``); None from a rank without
            parts of them.
        values: small values that the cell keeps; see ``small_values``.
        samples: of the rank's shard, and of the whole batch.
    """

    optimizer: int
    parameters: int
    sketches: Tensor | None
    values: Values
    samples: tuple[int, int]


def step_writer_of(
    run_folder: Path, strategy: Strategy, progress: TrainingProgress
) -> StepWriter | None:
    """Return what records the steps of this rank; None if there is no reference."""
    if not reference.has_reference(run_folder):
        return None
    try:
        return StepWriter(run_folder, strategy, progress)
    except OSError:  # the disk is full
        reference.end(run_folder)
        return None


class StepWriter:
    """Writes what a rank is about to step by."""

    def __init__(self, run_folder: Path, strategy: Strategy, progress: TrainingProgress) -> None:
        """Open the file of the rank whose steps ``strategy`` takes."""
        self._strategy = strategy
        self._progress = progress
        self._values = CellValues()
        self._folder = run_folder
        self._file = reference.step_file(run_folder, strategy.rank).open("ab", buffering=0)
        self._steps = 0

    def observe(self, optimizer: Optimizer, number: int) -> None:
        """Write the gradients of an ``optimizer`` of some ``number``, which is about to step.

        What fails here must not fail the training: the comparison ends.
        """
        if self._file.closed:
            return
        try:
            if self._steps == MOST_STEPS or not reference.is_verified_now(self._folder):
                self._file.close()
            else:
                self._write(optimizer, number)
        except Exception:  # no memory, another kind of tensor, no space, objects of the cell
            self._give_up()

    def _write(self, optimizer: Optimizer, number: int) -> None:
        self._steps += 1
        rows = sketches_of(optimizer, self._strategy)
        has_parts = bool(rows[:, 0].any()) or self._strategy.rank == 0
        data = rows.numpy().tobytes() if has_parts else b""
        values = self._encode(self._values.at_step())
        sent = len(rows) if has_parts else 0
        record = HEADER.pack(number, len(rows), sent, len(values)) + data + values
        if self._file.write(record) < len(record):
            self._give_up()

    def _encode(self, values: Values) -> bytes:
        shard = self._progress.shard
        samples = (shard.samples, shard.global_samples) if shard is not None else (0, 0)
        encoded = json.dumps([samples, values]).encode()
        return encoded if len(encoded) <= MOST_BYTES else json.dumps([samples, {}]).encode()

    def _give_up(self) -> None:
        self._file.close()
        reference.end(self._folder)

    def close(self) -> None:
        """Write that the cell has finished; without a step, there is nothing to compare."""
        if self._file.closed:
            return
        with suppress(Exception):  # as in ``observe``
            values = self._encode(self._values.at_end())
            self._file.write(HEADER.pack(0, END, 0, len(values)) + values)
        self._file.close()
        if not self._steps:
            reference.end(self._folder)

    def fails_on_one_device(self, failure: str, seconds: float) -> bool:
        """Return whether the cell fails in the same way on one device.

        Args:
            failure: how it has failed here, as in ``reference.write_error``.
            seconds: how long to wait for the reference, which may not be as far as this rank.
        """
        if not self._file.closed:
            with suppress(OSError):
                self._file.write(HEADER.pack(0, FAILED, 0, 0))
            self._file.close()
        deadline = time.monotonic() + seconds
        while reference.is_verified_now(self._folder) and time.monotonic() < deadline:
            time.sleep(POLL)
        return reference.has_error_like(self._folder, failure)


class StepReader:
    """Reads the steps of a rank."""

    def __init__(self, path: Path) -> None:
        """Read the file at ``path``, which need not be there yet."""
        self._path = path
        self._offset = 0
        self._steps: deque[StepRecord] = deque()

    def next_step(self, optimizer: int | None = None) -> StepRecord | None:
        """Return the next step, or the next of an optimizer; None if it is not there yet.

        Optimizers that step in hooks do so in another order on each rank.
        """
        self._read()
        for index, step in enumerate(self._steps):
            if optimizer in (None, step.optimizer) or step.parameters < 0:
                del self._steps[index]
                return step
        return None

    @property
    def has_failed(self) -> bool:
        """Whether the rank has failed instead of taking the next step."""
        self._read()
        return bool(self._steps) and self._steps[0].parameters == FAILED

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        position = 0
        while position + HEADER.size <= len(data):
            optimizer, parameters, rows, nbytes = HEADER.unpack_from(data, position)
            start = position + HEADER.size
            middle = start + rows * COLUMNS * 8
            if middle + nbytes > len(data):
                break
            sketches = None
            if rows:
                part = bytearray(data[start:middle])
                sketches = torch.frombuffer(part, dtype=torch.float64).view(rows, COLUMNS)
            position = middle + nbytes
            samples, values = json.loads(data[middle:position] or "[[0, 0], {}]")
            self._steps.append(StepRecord(optimizer, parameters, sketches, values, tuple(samples)))
        self._offset += position
