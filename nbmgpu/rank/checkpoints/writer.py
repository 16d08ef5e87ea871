"""Writes a checkpoint: tensors by ``torch.distributed.checkpoint``, in the background."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save

from nbmgpu.rank.reporting.recorder import Recorder
from nbmgpu.runs.checkpoint import (
    RANDOM,
    STATES,
    VALUES,
    complete,
    remove_old,
)
from nbmgpu.runs.checkpoint_description import CheckpointDescription
from nbmgpu.runs.checkpoint_tensors import METADATA, tensor_key
from nbmgpu.runs.events import CheckpointWritten

from .capture import CapturedState
from .failures import discard, text_of


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint that is being written.

    Attributes:
        folder: its files.
        files: what rank 0 writes beside the tensors, by name.
        description: what it describes; written last.
        begun: when it was begun, by ``time.perf_counter``.
        held: seconds that the cell was held up.
        nbytes: size of all tensors.
        tensors: done when all tensors of all ranks are written.
    """

    folder: Path
    files: dict[str, bytes]
    description: CheckpointDescription
    begun: float
    held: float
    nbytes: int
    tensors: Future[Any]


class CheckpointWriter:
    """Writes one checkpoint after the other, and removes old ones."""

    def __init__(self, rank: int, recorder: Recorder, keep: int) -> None:
        """Write with all ranks, which call it together; keep the newest ``keep`` checkpoints."""
        self._rank = rank
        self._group = dist.new_group(backend="gloo")  # of the thread in the background alone
        self._recorder = recorder
        self._keep = keep
        self._pending: PendingCheckpoint | None = None

    def write(
        self,
        folder: Path,
        state: CapturedState,
        random: list[Any],
        description: CheckpointDescription,
        begun: float,
    ) -> None:
        """Begin to write a checkpoint; returns once all tensors are copied to host memory.

        All ranks call it together.

        Args:
            folder: where to write.
            state: the captured state of this rank.
            random: the random states of all ranks.
            description: what is captured.
            begun: when capturing began, by ``time.perf_counter``.
        """
        self.finish()
        files = {STATES: state.states, VALUES: state.values, RANDOM: pickle.dumps(random)}
        own = {tensor_key(number): tensor for number, tensor in state.tensors.items()}
        future: Future[Any] = async_save(  # type: ignore[assignment]
            own,
            storage_writer=FileSystemWriter(folder, thread_count=1),
            process_group=self._group,
        )
        held = time.perf_counter() - begun
        self._pending = PendingCheckpoint(
            folder, files, description, begun, held, state.nbytes, future
        )

    def poll(self) -> None:
        """Complete a checkpoint whose tensors are written."""
        if self._pending is not None and self._pending.tensors.done():
            self.finish()

    def finish(self, timeout: float | None = None) -> None:
        """Wait for the checkpoint that is being written, and complete it.

        Args:
            timeout: seconds to wait at most; None for no limit.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.tensors.result(timeout)
            if self._rank == 0:
                for name, data in pending.files.items():
                    (pending.folder / name).write_bytes(data)
                checked = [*pending.files, METADATA]
                nbytes = complete(pending.folder, pending.description, checked)
        except (Exception, CheckpointException) as error:  # which is a BaseException
            if self._rank == 0:
                step, cause = pending.description.step, text_of(error)
                discard(pending.folder, step, pending.nbytes, cause, self._recorder)
            return
        if self._rank == 0:
            remove_old(pending.folder.parent, self._keep)
            self._recorder.events.emit(
                CheckpointWritten,
                step=pending.description.step,
                nbytes=nbytes,
                held=pending.held,
                seconds=time.perf_counter() - pending.begun,
            )
