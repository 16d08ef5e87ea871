"""Measurements, digests and notices that are reported once, after the cell has finished."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from nbmgpu.rank.batch_dependence import SPLIT_BY_COUNT
from nbmgpu.rank.source_analysis.made_batches import (
    iterates_over_loader,
    made_batches,
    unnamed_batches,
)
from nbmgpu.rank.source_analysis.notebook_code import NotebookCode
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import Measurements, StepDigest
from nbmgpu.strategies.replication import bit_checksums, digest

from . import notices

if TYPE_CHECKING:
    from nbmgpu.rank.loss.loss_analysis import LossAnalysis
    from nbmgpu.rank.metrics.memory import MemoryUsage
    from nbmgpu.rank.metrics.optimizer_step_times import OptimizerStepTimer
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.rank_info import RankInfo
    from nbmgpu.rank.training.step_limit import StepLimit
    from nbmgpu.rank.training.trained_objects import TrainedObjects
    from nbmgpu.strategies.base import Unit

    from .recorder import Recorder


def emit_measurements(
    events: EventWriter, limit: StepLimit, timer: OptimizerStepTimer, memory_usage: MemoryUsage
) -> None:
    """Emit the time and memory that the steps of a comparison's run have taken."""
    events.emit(
        Measurements,
        steps=limit.taken,
        seconds=timer.seconds(),
        samples=timer.samples(),
        held=memory_usage.tensor_bytes(),
        memory=memory_usage.peak(),
        gpu_memory=memory_usage.gpu_peak(),
        sent=timer.sent(),
        collectives=timer.collectives(),
    )


class FinalReport:
    """Reports what is known of the training after a cell that has succeeded."""

    def __init__(
        self,
        rank_info: RankInfo,
        progress: TrainingProgress,
        trained: TrainedObjects,
        losses: LossAnalysis,
        recorder: Recorder,
    ) -> None:
        """Report on the training of ``trained``."""
        self._rank_info = rank_info
        self._progress = progress
        self._trained = trained
        self._losses = losses
        self._recorder = recorder

    def emit_digest(self, events: EventWriter) -> None:
        """Emit digests of what is equal on all ranks: batches, reductions, replicated weights."""
        progress, steps = self._progress, self._losses.diagnostics.digest
        if not self._rank_info.shards_data or not progress.backwards:
            return
        weights, buffers = "", {}
        if progress.sharded_passes:
            with suppress(RuntimeError):  # out of memory: a check must not cost the results
                weights = digest(self._trained.strategy.replicated_parameters())
                buffers = _buffer_digests(self._trained.units)
        restart = self._recorder.restart
        events.emit(
            StepDigest,
            passes=progress.backwards,
            batches=steps.steps,
            losses=steps.reductions,
            numbers=self._losses.batch_dependence.numbers,
            weights=weights,
            buffers=buffers,
            may_restart=restart is not None and restart.possible,
        )

    def emit_notices(self, cell: str, namespace: Mapping[str, Any]) -> None:
        """Emit the notices that need the whole ``cell``, which ran in ``namespace``."""
        progress, recorder = self._progress, self._recorder
        trains = self._rank_info.shards_data and progress.backwards > 0
        if trains and progress.sharded_passes == 0:
            recorder.notice("not-sharded", self._how_to_share(cell, namespace))
        if progress.had_untrained_pass:
            recorder.notice("not-trained", notices.NOT_TRAINED)
        if self._rank_info.rank:
            return  # rank 0 has the largest shards: another size would have been reported there
        code = NotebookCode.from_cell(cell, namespace)
        diagnostics = self._losses.diagnostics
        text = diagnostics.size_inference.notice_text(code)
        if text and not recorder.has_notice("late-divisor"):
            recorder.notice("ambiguous-size", text)
        splits = self._losses.batch_dependence.splits_batches
        if splits and not NotebookCode.without_models(cell, namespace).names & SPLIT_BY_COUNT:
            recorder.notice("chunked-batch", notices.CHUNKED_BATCH)
        if diagnostics.has_other_gradients and code.reads_gradients:
            recorder.notice("local-gradient", notices.LOCAL_GRADIENT)
        if diagnostics.size_inference.has_penalty_by_size(code):
            recorder.notice("scaled-penalty", notices.SCALED_PENALTY)

    def _how_to_share(self, cell: str, namespace: Mapping[str, Any]) -> str:
        """Return the notice that the batches of ``cell`` were not divided, and what would do it."""
        is_shared = "nbmgpu.share(" in cell or "in share(" in cell
        if is_shared or (not self._trained.units and iterates_over_loader(cell, namespace)):
            return notices.WITH_OPTIMIZER_ALONE
        loop = _share_loop(cell, namespace)
        optimizer = "" if self._trained.units else notices.WITH_OPTIMIZER
        return notices.NOT_SHARDED.format(loop=loop, optimizer=optimizer)


def _share_loop(cell: str, namespace: Mapping[str, Any]) -> str:
    """Return the loop that would divide the batches that ``cell`` makes itself, as a suggestion."""
    made = made_batches(cell, namespace)
    names = [name for name in made if isinstance(namespace.get(name), torch.Tensor)]
    unnamed = unnamed_batches(cell, namespace)
    if not names and not unnamed:
        return notices.SHARE_SLICES
    targets = [*"abcdefgh"[: len(unnamed)], *names]
    return notices.SHARE_LOOP.format(
        targets=", ".join(targets), batches=", ".join([*unnamed, *names])
    )


def _buffer_digests(units: list[Unit]) -> dict[str, str]:
    """Return a digest of each persistent buffer of the modules in ``units``, by name."""
    roots = [root for unit in units for root in unit.modules]
    found = [
        (".".join(filter(None, (type(root).__name__, path, name))), buffer)
        for root in roots
        for path, module in root.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]
    digests: dict[str, str] = {}
    for (name, _), bits in zip(found, bit_checksums([b for _, b in found]), strict=True):
        digests[name] = digests.get(name, "") + bits.hex()  # models may have the same class
    return digests
