"""Patches of Lightning's evaluations: whole data on every rank, the notebook's random numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from .library import LightningLibrary

if TYPE_CHECKING:
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.reporting.recorder import Recorder
    from nbmgpu.rank.rng.streams import RandomStreams


class EvaluationPatch:
    """Evaluates and predicts in one copy of Lightning as on one device.

    Attributes:
        num_batches: number of batches of the current evaluation so far.
    """

    def __init__(
        self,
        progress: TrainingProgress,
        streams: RandomStreams,
        recorder: Recorder,
        library: LightningLibrary,
    ) -> None:
        """Patch ``library``.

        Args:
            progress: current shard and step.
            streams: the random streams of the rank.
            recorder: takes the progress of evaluations.
            library: the copy of Lightning.
        """
        self.progress = progress
        self.streams = streams
        self.recorder = recorder
        self.library = library
        self.num_batches = 0

    def install(self) -> None:
        """Install the patches, for the rest of this process."""

        def run(original: Any) -> Any:
            def evaluate(loop: Any) -> Any:
                with self._evaluation(loop):
                    return original(loop)

            return evaluate

        def step(original: Any) -> Any:
            def one(loop: Any, *args: Any, **kwargs: Any) -> Any:
                self._report(loop)
                return original(loop, *args, **kwargs)

            return one

        for loop, method in (
            ("loops.evaluation_loop._EvaluationLoop", "_evaluation_step"),
            ("loops.prediction_loop._PredictionLoop", "_predict_step"),
        ):
            self.library.wrap(f"{loop}.run", run)
            self.library.wrap(f"{loop}.{method}", step)
            # With gradients enabled its loader would count as one that trains.
            self.library.wrap(f"{loop}.setup_data", torch.no_grad())

    @contextlib.contextmanager
    def _evaluation(self, loop: Any) -> Iterator[None]:
        """Leave the training step for the duration of an evaluation."""
        shard, self.progress.shard = self.progress.shard, None
        mode, loop.inference_mode = loop.inference_mode, False  # collectives refuse such tensors
        self.num_batches = 0
        try:
            with self.streams.notebook_stream():
                yield
        finally:
            loop.inference_mode = mode
            self.progress.shard = shard
            if self.num_batches:
                self._report(loop, done=True)

    def _report(self, loop: Any, done: bool = False) -> None:
        self.num_batches += not done
        total = sum(loop.max_batches)
        self.recorder.progress(
            "evaluation",
            label=loop.trainer.state.stage.value.replace("_", " "),
            step=self.num_batches,
            total=int(total) if total < float("inf") else 0,
            done=done,
        )
