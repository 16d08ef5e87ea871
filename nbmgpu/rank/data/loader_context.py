"""The parts of a rank that loaders use to yield its shards and begin its steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbmgpu.rank.reporting import notices

from .whole_values import make_whole

if TYPE_CHECKING:
    from nbmgpu.rank.loss.loss_analysis import LossAnalysis
    from nbmgpu.rank.rank_info import RankInfo
    from nbmgpu.rank.reporting.recorder import Recorder
    from nbmgpu.rank.rng.draw_detector import DrawDetector
    from nbmgpu.rank.rng.streams import RandomStreams
    from nbmgpu.rank.training.trained_objects import TrainedObjects

    from .loader_steps import LoaderSteps


@dataclass(frozen=True)
class LoaderContext:
    """The parts of a rank that loaders use.

    Attributes:
        rank_info: determines the rank's shard of each batch.
        trained: the models and optimizers that train on batches.
        steps: begins and ends steps and passes.
        losses: follows the samples of batches.
        recorder: takes notices.
        streams: the rank's random streams.
        original_iter: ``DataLoader.__iter__`` without the patch.
        sampler_generators: ids of the generators that samplers draw from, alike on all ranks.
    """

    rank_info: RankInfo
    trained: TrainedObjects
    steps: LoaderSteps
    losses: LossAnalysis
    recorder: Recorder
    streams: RandomStreams
    original_iter: Callable[[Any], Iterator[Any]]
    sampler_generators: set[int] = field(default_factory=set)

    def make_whole(self, names: Collection[str]) -> None:
        """Give variables of the last step the whole batch; see ``whole_values.make_whole``."""
        if self.rank_info.splits_batches:
            self.losses.batch_dependence.stop_if_done()
            variables = self.losses.batch_dependence.step_values.variables
            make_whole(names, variables, self.steps.last_batches, self.rank_info)

    def note_batch_norm(self) -> None:
        """Give a notice if the cell normalizes over its batches."""
        if self.rank_info.splits_batches and self.trained.has_batch_norm():
            self.recorder.notice("batch-norm", notices.BATCH_NORM)

    def note_draws(self, draws: DrawDetector, host: bool = True) -> None:
        """Give a notice for ``draws``; without ``host``, those of Python and NumPy are ignored."""
        if not self.rank_info.splits_batches:
            return
        if draws.torch_drew:
            self.recorder.notice("random-step", notices.RANDOM_STEP)
        elif self.streams.drew_in_fork or (host and draws.host_drew):
            self.recorder.notice("random-host", notices.RANDOM_HOST)
