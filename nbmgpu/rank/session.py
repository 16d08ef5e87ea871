"""The parts of a training session in a rank, and how they are connected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch.utils.data import DataLoader

from .batch_dependence import BatchDependenceDetector
from .cell_settings import CellSettings
from .data.current_batch import CurrentBatch
from .data.last_batch import LastBatches
from .data.loader_context import LoaderContext
from .data.loader_events import LoaderEventDispatcher
from .data.loader_patch import LoaderPatch
from .data.loader_steps import LoaderSteps
from .loss.diagnostics import LossDiagnostics
from .loss.divisor_agreement import DivisorAgreement
from .loss.divisors import DivisorComparison
from .loss.loss_analysis import LossAnalysis
from .loss.loss_state import LossState
from .metrics.step_metrics import StepMetrics
from .progress import TrainingProgress
from .rank_info import RankInfo
from .reporting import notices
from .reporting.shard_report import ShardReport
from .rng.streams import RandomStreams
from .tracker_logging import rank_logging
from .training.gradient_accumulation import GradientAccumulation
from .training.model_options import ModelOptions
from .training.step_limit import StepLimit
from .training.step_options import StepOptions
from .training.sync_batchnorm import BatchNormPatch
from .training.trained_objects import TrainedObjects
from .user_modules import UserModules

if TYPE_CHECKING:
    from torch import Tensor

    from nbmgpu.runs.event_file import EventWriter
    from nbmgpu.strategies.base import Strategy
    from nbmgpu.trackers.base import RankLogging

    from .reporting.recorder import Recorder
    from .training.optimizer_registry import OptimizerRegistry


@dataclass(frozen=True)
class TrainingSession:
    """The parts of a training session.  ``main`` and ``frameworks`` pass them to what needs them.

    Attributes:
        rank_info: position of the rank.
        strategy: how ranks share the work.
        recorder: takes metrics, progress and notices.
        progress: current shard and step.
        trained: optimizers and modules of the cell.
        step_options: options that change optimizer steps.
        losses: what analyses losses.
        metrics: records losses, learning rates and speed.
        loaders: shards the loaders of the cell.
        loader_events: begins the steps of batches in the order in which they are used.
        streams: the random streams of the rank.
        trackers: what the rank logs to.
        modules: the user's modules.
        settings: of the process.
    """

    rank_info: RankInfo
    strategy: Strategy
    recorder: Recorder
    progress: TrainingProgress
    trained: TrainedObjects
    step_options: StepOptions
    losses: LossAnalysis
    metrics: StepMetrics
    loaders: LoaderPatch
    loader_events: LoaderEventDispatcher
    streams: RandomStreams
    trackers: RankLogging
    modules: UserModules = field(default_factory=UserModules)
    settings: CellSettings = field(default_factory=CellSettings)

    def begin_run(self, events: EventWriter, step_limit: int | None) -> None:
        """Begin the next run of ranks that are held, with the same objects and patches."""
        self.recorder.begin_run(events)
        self.progress.begin_run()
        self.streams.begin_run()
        self.metrics.begin_run()
        self.step_options.limit.begin_run(step_limit)
        self.losses.diagnostics.begin_run()
        self.trained.shard_report.begin_run(events, self.trained.units)

    def pause(self) -> None:
        """Send the notices that are still pending, at the end of a cell."""
        self.loader_events.current_batch.flush()
        self.loaders.report_remaining_draws()
        self.losses.diagnostics.flush()
        self.losses.batch_dependence.close()

    def close(self) -> None:
        """Restore the user's objects, and send the notices that are still pending."""
        self.pause()
        self.strategy.release()
        self.trained.options.release()


def make_session(
    rank_info: RankInfo,
    strategy: Strategy,
    recorder: Recorder,
    registry: OptimizerRegistry,
    step_limit: int | None,
    repeated: float | None = None,
) -> TrainingSession:
    """Make the parts of a session and connect them; no patch is installed yet.

    Args:
        rank_info: position of the rank.
        strategy: how ranks share the work.
        recorder: takes metrics, progress and notices.
        registry: the optimizers of this process.
        step_limit: number of optimizer steps after which the cell ends; None for no limit.
        repeated: as in the record of the run.
    """
    progress = TrainingProgress()
    limit = StepLimit(step_limit, progress)
    accumulation = GradientAccumulation(strategy.options.accumulate)

    def buffers() -> list[Tensor]:
        return trained.buffers()

    batch_dependence = BatchDependenceDetector(recorder, buffers)
    strategy.copy_tag = batch_dependence.copy_tag
    batch_norm = BatchNormPatch(strategy.new_dp_group, progress, batch_dependence)
    shards_data = rank_info.shards_data
    divisors = DivisorComparison(recorder, rank_info.dp_rank, rank_info.dp_size, rank_info.dp_group)
    trained = TrainedObjects(
        registry,
        strategy,
        ModelOptions(strategy, batch_norm, progress, recorder, shards_data),
        divisors,
        ShardReport(strategy, recorder.events),
        shards_data=shards_data,
        accumulates=accumulation.on,
    )
    current_batch = CurrentBatch(
        on_queued=lambda: trained.watch_inputs(current_batch.match_inputs),
        on_ambiguous=lambda: recorder.notice("prefetched-batches", notices.PREFETCHED_BATCHES),
    )
    events = LoaderEventDispatcher(current_batch)
    state = LossState()
    losses = LossAnalysis(
        state,
        LossDiagnostics(rank_info, progress, state, recorder),
        DivisorAgreement(rank_info, progress, events, divisors),
        batch_dependence,
    )
    streams = RandomStreams(rank_info.dp_rank, rank_info.splits_batches)
    metrics = StepMetrics(recorder, progress, limit, batch_dependence, strategy.device)
    last_batches = LastBatches(batch_dependence.step_values)
    steps = LoaderSteps(
        progress, accumulation, state, metrics.throughput, recorder, events, last_batches
    )
    context = LoaderContext(
        rank_info,
        trained,
        steps,
        losses,
        recorder,
        streams,
        DataLoader.__iter__,
    )
    return TrainingSession(
        rank_info=rank_info,
        strategy=strategy,
        recorder=recorder,
        progress=progress,
        trained=trained,
        step_options=StepOptions(accumulation, limit, strategy.options.clip),
        losses=losses,
        metrics=metrics,
        loaders=LoaderPatch(context, limit),
        loader_events=events,
        streams=streams,
        trackers=rank_logging(rank_info, recorder, repeated),
    )
