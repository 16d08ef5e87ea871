"""Patches of transformers' Trainer: it trains as on one device.

Its loaders, backward passes, optimizer and files reach nbmgpu's patches of torch like those of a
plain loop.  This module handles what a Trainer does by itself: its evaluations, decisions by
metrics, and counts of tokens and operations.  ``trainer_loop`` follows its training loop, and
``trainer_reports`` shows its logs and progress.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbmgpu.patches import PatchStack
from nbmgpu.rank.reporting import notices
from nbmgpu.rank.source_analysis import training_loops
from nbmgpu.rank.store.broadcast import broadcast_from_rank_0, sum_over_ranks, wait_for_rank_0

from .own_distribution import distributes_by_itself, line_for, refuse
from .trainer_checkpoints import TrainerCheckpointPatch
from .trainer_loop import TRAINER, TrainingLoop
from .trainer_reports import Reports

if TYPE_CHECKING:
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.rank_info import RankInfo
    from nbmgpu.rank.reporting.recorder import Recorder
    from nbmgpu.rank.rng.streams import RandomStreams
    from nbmgpu.rank.session import TrainingSession
    from nbmgpu.rank.training.gradient_accumulation import GradientAccumulation

OWN_DISTRIBUTION = ("fsdp", "deepspeed", "parallelism_config")
"""Training arguments that choose a distribution in the cell."""


def install(session: TrainingSession) -> None:
    """Patch the Trainer class, so that every Trainer of this process trains in ``session``."""
    patches, strategy, losses = PatchStack(), session.strategy, session.losses.state
    Reports(session.recorder, losses).install(patches)
    if distributes_by_itself(strategy):
        return
    # It would warn that a process group exists and is not used, which is intended.
    patches.replace("transformers.training_args._is_torch_distributed_initialized", lambda: False)
    if strategy.profile.name != "dp":  # under dp a Trainer uses nn.DataParallel, too
        patches.wrap("transformers.training_args.TrainingArguments.n_gpu", _at_most_one)
    make_loop = functools.partial(
        TrainingLoop,
        session.rank_info,
        session.progress,
        losses,
        session.loaders,
        session.loader_events,
        session.recorder,
    )
    TrainerPatch(
        strategy.profile.name,
        session.rank_info,
        session.progress,
        session.step_options.accumulation,
        session.streams,
        session.recorder,
        make_loop,
        patches,
    ).install()
    TrainerCheckpointPatch(patches).install()


def _at_most_one(n_gpu: Any) -> property:
    """Let arguments that were made in a notebook with several GPUs count one.

    Their batch size is that of all ranks together.
    """
    return property(lambda args: min(1, n_gpu.fget(args)))


class TrainerPatch:
    """Wrappers of a Trainer's methods."""

    def __init__(
        self,
        strategy: str,
        rank_info: RankInfo,
        progress: TrainingProgress,
        accumulation: GradientAccumulation,
        streams: RandomStreams,
        recorder: Recorder,
        make_loop: Callable[[Any], TrainingLoop],
        patches: PatchStack,
    ) -> None:
        """Prepare the wrappers.

        Args:
            strategy: name of the strategy.
            rank_info: position of the rank.
            progress: current shard and step.
            accumulation: refused, as a Trainer has an argument for it.
            streams: the random streams of the rank.
            recorder: takes metrics and notices.
            make_loop: returns what follows a Trainer's training loop.
            patches: holds the wrappers.
        """
        self.strategy = strategy
        self.rank_info = rank_info
        self.progress = progress
        self.accumulation = accumulation
        self.streams = streams
        self.recorder = recorder
        self.make_loop = make_loop
        self.patches = patches
        self.evaluating = False

    def install(self) -> None:
        """Wrap the methods of the class, for the rest of this process."""
        # An evaluation is never split, even if another model is in training mode meanwhile.
        training_loops.library_checks.append(lambda frame: False if self.evaluating else None)
        for name in ("__init__", "train", "evaluate", "predict"):
            self._wrap(name, self.refuse_own_distribution)
        self._wrap("train", self.keep_batch_size)
        self._wrap("_get_grad_norm", self.record_grad_norm)
        self._wrap("_inner_training_loop", self.follow_training)
        for name in ("evaluation_loop", "prediction_loop"):
            self._wrap(name, self.evaluate_everywhere)
        self._wrap("store_flos", self.sum_flos)
        self._wrap("_track_num_input_tokens", self.sum_tokens)
        for name in ("_save_rng_state", "_load_rng_state"):
            self._wrap(name, self.use_notebook_stream)
        for name in ("_save_checkpoint", "save_model"):
            self._wrap(name, self.wait_for_save)

    def _wrap(self, name: str, by: Callable[..., Any]) -> None:
        """Replace a method by ``by(original, instance, *args, **kwargs)``."""

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def wrapped(instance: Any, *args: Any, **kwargs: Any) -> Any:
                return by(original, instance, *args, **kwargs)

            return wrapped

        self.patches.wrap(f"{TRAINER}.{name}", make)

    def refuse_own_distribution(
        self, original: Any, trainer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse arguments that distribute the training in another way."""
        arguments = getattr(trainer, "args", None) or kwargs.get("args")
        if arguments is None and len(args) > 1:
            arguments = args[1]
        for name in OWN_DISTRIBUTION:
            if value := getattr(arguments, name, None):
                refuse(f"TrainingArguments({name}=...)", self.strategy, line_for(name, value))
        return original(trainer, *args, **kwargs)

    def keep_batch_size(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Skip the search for a batch size: ranks would not find the same one."""
        wanted = trainer.args.auto_find_batch_size
        if not wanted or not self.rank_info.shards_data:
            return original(trainer, *args, **kwargs)
        self.recorder.notice("auto-batch-size", notices.AUTO_BATCH_SIZE)
        trainer.args.auto_find_batch_size = False
        try:
            return original(trainer, *args, **kwargs)
        finally:
            trainer.args.auto_find_batch_size = wanted

    def record_grad_norm(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Record the norm of the gradients at every step."""
        norm = original(trainer, *args, **kwargs)
        if norm is not None:
            self.recorder.metric("grad_norm", trainer.state.global_step + 1, norm)
        return norm

    def follow_training(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Follow the training loop from its first loader to its end."""
        self.accumulation.refuse_in(
            "a Trainer", "TrainingArguments(..., gradient_accumulation_steps={})"
        )
        with self.make_loop(trainer).followed():
            return original(trainer, *args, **kwargs)

    def evaluate_everywhere(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate on all samples on every rank, and decide by rank 0's metrics.

        The metrics of the other ranks may differ in the last digit.
        """
        before, self.evaluating = self.evaluating, True
        progress = self.progress
        shard, progress.shard = progress.shard, None  # evaluation batches are not sharded
        try:
            output = original(trainer, *args, **kwargs)
        finally:
            self.evaluating, progress.shard = before, shard
        if not trainer.is_in_train or not self.rank_info.shards_data:
            return output
        return output._replace(metrics=broadcast_from_rank_0(output.metrics))

    def sum_flos(self, original: Any, trainer: Any) -> None:
        """Count the floating point operations of all ranks, as on one device."""
        if self.rank_info.shards_data and trainer.is_in_train:
            group = self.rank_info.dp_group
            (trainer.current_flos,) = sum_over_ranks([trainer.current_flos], group)
        original(trainer)

    def sum_tokens(self, original: Any, trainer: Any, inputs: Any) -> None:
        """Count the tokens of all ranks; those of a padding batch do not count."""
        before = trainer.state.num_input_tokens_seen
        original(trainer, inputs)
        shard = self.progress.shard
        if shard is None or trainer.args.include_num_input_tokens_seen == "no":
            return
        local = 0 if shard.is_padding else trainer.state.num_input_tokens_seen - before
        seen, weights = sum_over_ranks([local, shard.weight], self.rank_info.dp_group)
        trainer.state.num_input_tokens_seen = before + round(seen / weights)

    def use_notebook_stream(self, original: Any, trainer: Any, *args: Any) -> None:
        """Save or load the notebook's random state, not the rank's own."""
        with self.streams.notebook_stream():
            original(trainer, *args)

    def wait_for_save(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Return when rank 0 has written the files, or has failed to."""
        try:
            original(trainer, *args, **kwargs)
        except Exception:
            if self.rank_info.shards_data and self.rank_info.rank == 0:
                wait_for_rank_0("saved")
            raise
        if self.rank_info.shards_data:
            wait_for_rank_0("saved")
