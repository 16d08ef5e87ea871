"""Patches of transformers' Trainer: it trains as on one device.

Its loaders, backward passes, optimizer and files reach nbmgpu's patches of torch like those of a
plain loop.  This module handles what a Trainer does by itself: it fetches all batches of an
accumulated step at once and divides their losses by the number of targets in all of them; it
asks for the length of a loader before there is an optimizer; it decides by its metrics; and it
shows progress bars.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from nbmgpu.patches import PatchStack
from nbmgpu.rank.data.batch_shard import BatchShard
from nbmgpu.rank.data.loader_events import EventQueue
from nbmgpu.rank.reporting import notices
from nbmgpu.rank.session import TrainingSession
from nbmgpu.rank.source_analysis import training_loops
from nbmgpu.rank.store.broadcast import broadcast_from_rank_0, sum_over_ranks, wait_for_rank_0

from .accelerate import distributes_by_itself, refuse
from .trainer_reports import Reports

OWN_DISTRIBUTION = ("fsdp", "deepspeed", "parallelism_config")
"""Training arguments that choose a distribution in the cell."""

TRAINER = "transformers.trainer.Trainer"


def install(session: TrainingSession) -> None:
    """Patch the Trainer class, so that every Trainer of this process trains in ``session``."""
    patches = PatchStack()
    Reports(session.recorder, session.losses.state).install(patches)
    if distributes_by_itself(session):
        return
    # It would warn that a process group exists and is not used, which is intended.
    patches.replace("transformers.training_args._is_torch_distributed_initialized", lambda: False)
    if not session.strategy.profile.in_one_process:
        patches.wrap("transformers.training_args.TrainingArguments.n_gpu", _at_most_one)
    TrainerPatch(session, patches).install()


def _at_most_one(n_gpu: Any) -> property:
    """Let arguments that were made in a notebook with several GPUs count one.

    Their batch size is that of all ranks together.
    """
    return property(lambda args: min(1, n_gpu.fget(args)))


class TrainerPatch:
    """Wrappers of a Trainer's methods."""

    def __init__(self, session: TrainingSession, patches: PatchStack) -> None:
        """Train in ``session``; ``patches`` holds the wrappers."""
        self.session = session
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
            if getattr(arguments, name, None):
                refuse(self.session, f"TrainingArguments({name}=...)")
        return original(trainer, *args, **kwargs)

    def keep_batch_size(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Skip the search for a batch size: ranks would not find the same one."""
        wanted = trainer.args.auto_find_batch_size
        if not wanted or not self.session.rank_info.shards_data:
            return original(trainer, *args, **kwargs)
        self.session.recorder.notice("auto-batch-size", notices.AUTO_BATCH_SIZE)
        trainer.args.auto_find_batch_size = False
        try:
            return original(trainer, *args, **kwargs)
        finally:
            trainer.args.auto_find_batch_size = wanted

    def record_grad_norm(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Record the norm of the gradients at every step."""
        norm = original(trainer, *args, **kwargs)
        if norm is not None:
            self.session.recorder.metric("grad_norm", trainer.state.global_step + 1, norm)
        return norm

    def follow_training(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Follow the training loop from its first loader to its end."""
        self.session.step_options.accumulation.refuse_in(
            "a Trainer", "TrainingArguments(..., gradient_accumulation_steps={})"
        )
        with TrainingLoop(self.session, trainer).followed():
            return original(trainer, *args, **kwargs)

    def evaluate_everywhere(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate on all samples on every rank, and decide by rank 0's metrics.

        The metrics of the other ranks may differ in the last digit.
        """
        before, self.evaluating = self.evaluating, True
        progress = self.session.progress
        shard, progress.shard = progress.shard, None  # evaluation batches are not sharded
        try:
            output = original(trainer, *args, **kwargs)
        finally:
            self.evaluating, progress.shard = before, shard
        if not trainer.is_in_train or not self.session.rank_info.shards_data:
            return output
        return output._replace(metrics=broadcast_from_rank_0(output.metrics))

    def sum_flos(self, original: Any, trainer: Any) -> None:
        """Count the floating point operations of all ranks, as on one device."""
        if self.session.rank_info.shards_data and trainer.is_in_train:
            group = self.session.rank_info.dp_group
            (trainer.current_flos,) = sum_over_ranks([trainer.current_flos], group)
        original(trainer)

    def sum_tokens(self, original: Any, trainer: Any, inputs: Any) -> None:
        """Count the tokens of all ranks; those of a padding batch do not count."""
        before = trainer.state.num_input_tokens_seen
        original(trainer, inputs)
        shard = self.session.progress.shard
        if shard is None or trainer.args.include_num_input_tokens_seen == "no":
            return
        mine = 0 if shard.is_padding else trainer.state.num_input_tokens_seen - before
        seen, weights = sum_over_ranks([mine, shard.weight], self.session.rank_info.dp_group)
        trainer.state.num_input_tokens_seen = before + round(seen / weights)

    def use_notebook_stream(self, original: Any, trainer: Any, *args: Any) -> None:
        """Save or load the notebook's random state, not the rank's own."""
        with self.session.streams.notebook_stream():
            original(trainer, *args)

    def wait_for_save(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Return when rank 0 has written the files."""
        original(trainer, *args, **kwargs)
        if self.session.rank_info.shards_data:
            wait_for_rank_0("saved")


class TrainingLoop:
    """One training loop of a Trainer."""

    def __init__(self, session: TrainingSession, trainer: Any) -> None:
        """Follow ``trainer``."""
        self.session = session
        self.trainer = trainer
        self.queue = EventQueue()
        self.loss: Any = 0.0
        self.left = 0

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Wrap methods of this instance, which covers those that a subclass overrides."""
        trainer, session = self.trainer, self.session
        patches = PatchStack()
        wrappers: dict[str, Callable[[Any], Any]] = {
            "get_train_dataloader": self._splitting,
            "get_batch_samples": self._fetching,
            "training_step": self._stepping,
            "floating_point_ops": self._counting,
        }
        batch_size = trainer._train_batch_size
        gpus = getattr(trainer.args, "_n_gpu", 1)
        if gpus > 1 and trainer.args.n_gpu == 1:
            trainer._train_batch_size = max(1, batch_size // gpus)
        for name, make in wrappers.items():
            patches.wrap(f"{TRAINER}.{name}", make, trainer)
        session.losses.state.are_recorded = False
        try:
            yield
        finally:
            session.losses.state.are_recorded = True
            patches.remove()
            trainer._train_batch_size = batch_size
            session.loader_events.finish(self.queue)
            session.losses.state.global_counts.clear()

    def _splitting(self, original: Callable[[], Any]) -> Callable[[], Any]:
        """Mark the loader as split: a Trainer asks for its length before it iterates."""

        def get_train_dataloader() -> Any:
            loader = original()
            if self.session.rank_info.shards_data:
                inner = getattr(loader, "base_dataloader", loader)
                self.session.loaders.expect_sharded(inner)
            return loader

        return get_train_dataloader

    def _fetching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Queue the batches of a step, which begin one after the other, and count their targets."""

        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            session = self.session
            session.loader_events.finish(self.queue)
            # A Trainer calls it after it has the batch; the loader checks it before.
            self.trainer.model.train()
            with session.loader_events.collect(self.queue):
                batches, count = original(*args, **kwargs)
            shards = [event.shard for event in self.queue if event.shard is not None]
            if count is not None and session.rank_info.shards_data and shards:
                count = self._count(batches, shards, count)
                session.losses.state.global_counts[:] = [count]
            self.left = len(batches)
            return Batches(batches, session, self.queue), count

        return get_batch_samples

    def _count(self, batches: list[Any], shards: list[BatchShard], local: Any) -> Any:
        """Return the number of targets that one device would count in the batches of a step.

        The losses of all ranks, divided by it, add up to that of one device.
        """
        one = functools.partial(self.trainer._get_num_items_in_batch, device=torch.device("cpu"))
        counts = [
            0.0 if s.is_padding else float(one([b])) for b, s in zip(batches, shards, strict=True)
        ]
        weights = [shard.weight for shard in shards]
        sums = sum_over_ranks([*counts, *weights], self.session.rank_info.dp_group)
        pairs = zip(sums[: len(counts)], sums[len(counts) :], strict=True)
        total = sum(count / weight for count, weight in pairs)
        return local.new_tensor(total) if torch.is_tensor(local) else round(total)

    def _stepping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Record the loss of each optimizer step, as the Trainer logs it with logging_steps=1."""

        def training_step(*args: Any, **kwargs: Any) -> Any:
            session = self.session
            session.progress.step = self.trainer.state.global_step + 1
            loss = original(*args, **kwargs)
            self.loss, self.left = self.loss + loss, self.left - 1
            if self.left <= 0:
                session.recorder.metric("loss", session.progress.step, self.loss)
                self.loss = 0.0
            return loss

        return training_step

    def _counting(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Skip the operations of a padding batch, and count once what all ranks compute."""

        def floating_point_ops(inputs: Any) -> Any:
            rank_info, shard = self.session.rank_info, self.session.progress.shard
            if shard is None:
                return original(inputs) / (rank_info.dp_size if rank_info.shards_data else 1)
            return 0 if shard.is_padding else original(inputs)

        return floating_point_ops


class Batches(list[Any]):
    """The batches of a step: a batch's step begins when it is yielded."""

    def __init__(self, batches: list[Any], session: TrainingSession, queue: EventQueue) -> None:
        """Hold ``batches``, whose steps are queued in ``queue``."""
        super().__init__(batches)
        self._session, self._queue = session, queue

    def __iter__(self) -> Iterator[Any]:
        """Begin each batch's step and yield it; end the pass after the last batch."""
        for batch in super().__iter__():
            self._session.loader_events.dispatch_next_batch(self._queue)
            yield batch
        if not any(event.begins_step for event in self._queue):
            self._session.loader_events.finish(self._queue)
