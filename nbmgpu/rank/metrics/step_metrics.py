"""Metrics of training steps: losses, learning rates, speed, and what ``nbmgpu.log`` is given."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from nbmgpu.rank.reporting.recorder import check_metrics

from .optimizer_step_times import OptimizerStepTimer
from .step_time import StepTimer
from .throughput import Throughput

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nbmgpu.rank.batch_dependence import BatchDependenceDetector
    from nbmgpu.rank.loss.readable_losses import ReadableLosses
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.reporting.recorder import Recorder
    from nbmgpu.rank.training.step_limit import StepLimit


class StepMetrics:
    """Records the metrics of each step.

    Attributes:
        timer: the time of steps, and how much of it is the rank's own.
        optimizer_timer: the time of each of the steps that ``--steps`` allows.
        throughput: samples and tokens per second.
    """

    def __init__(
        self,
        recorder: Recorder,
        progress: TrainingProgress,
        limit: StepLimit,
        batch_dependence: BatchDependenceDetector,
        device: str,
    ) -> None:
        """Record at the steps of ``progress``."""
        self._recorder = recorder
        self._progress = progress
        self._limit = limit
        self._batch_dependence = batch_dependence
        self._calls: Counter[str] = Counter()
        self._device = device
        self.timer = StepTimer()
        self.optimizer_timer = OptimizerStepTimer(device)
        self.throughput = Throughput(recorder)

    def begin_run(self) -> None:
        """Count and measure anew."""
        self._calls.clear()
        self.timer.begin_run()
        self.optimizer_timer = OptimizerStepTimer(self._device)
        self.throughput.begin_run()

    def record_loss(self, losses: ReadableLosses) -> None:
        """Record the loss of a backward pass."""
        progress, loss = self._progress, losses.logged.detach()
        self._recorder.metric(losses.name, progress.step, loss, progress.weight)

    def record_optimizer_step(self, optimizer: Optimizer, number: int | None) -> None:
        """Record the learning rate of a step, and count the step towards the limit.

        Args:
            optimizer: whose step it was.
            number: its index among the cell's optimizers; None if it is not one of them.
        """
        limit = self._limit
        self._progress.backwards_at_step = self._progress.backwards
        if limit.on and limit.count(optimizer):
            self.optimizer_timer.mark(self._progress.samples)
            self._recorder.progress("steps", label="steps", step=limit.taken, total=limit.limit)
        if number is not None:
            name = "lr" if number == 0 else f"lr {number + 1}"
            rate = optimizer.param_groups[0].get("lr", 0.0)
            self._recorder.metric(name, self._progress.step, rate)

    def log(self, values: dict[str, Any]) -> None:
        """Record metrics of the user at the current step, weighted by the shard.

        Without a training step, each call counts as a step.

        Raises:
            TypeError: a value is not one number; none is recorded then.
        """
        step, weight = self._progress.step, self._progress.weight
        with self._batch_dependence.paused():
            for name, value in check_metrics(values).items():
                self._recorder.metric(name, step or self._calls[name], value, weight)
                self._calls[name] += 1
