"""The Trainer of transformers in a rank: it trains as on one device.

Its loaders, its backward passes, its optimizer and its files reach the rank's taps like
anybody's.  What is left to do here is what a Trainer does ahead of time, counts by itself or
shows by itself: it takes all batches of an accumulated step at once and divides their losses
by the number of targets in all of them; it asks for the length of a loader before there is an
optimizer; it decides by its metrics; and it has progress bars.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from nbmgpu.rank.data.batch_shard import Share
from nbmgpu.rank.data.read_ahead import Queue
from nbmgpu.rank.reporting import notices
from nbmgpu.rank.session import Session
from nbmgpu.rank.source_analysis import training_loops
from nbmgpu.rank.store.broadcast import after_rank_0, from_rank_0, sum_over_ranks

from .accelerate import distributes_by_itself, refuse
from .trainer_reports import Reports

OWN_DISTRIBUTION = ("fsdp", "deepspeed", "parallelism_config")
"""Training arguments with which a cell distributes by itself."""


def tap(session: Session) -> None:
    """Let every Trainer of this process train for ``session``."""
    from transformers import trainer, trainer_callback

    training_args: Any = importlib.import_module("transformers.training_args")
    Reports(session).install(trainer_callback)
    if distributes_by_itself(session):
        return
    # It would say that a process group is there and not used, which is as it should be.
    training_args._is_torch_distributed_initialized = lambda: False
    _see_one_device(session, training_args.TrainingArguments)
    taps = TrainerTap(session)
    # Whatever else is in training mode by then: an evaluation is not split.
    training_loops.asked_first.append(lambda frame: False if taps.evaluating else None)
    kind = trainer.Trainer
    for name in ("__init__", "train", "evaluate", "predict"):
        wrap(kind, name, taps.checked)
    wrap(kind, "train", taps.with_its_batch_size)
    wrap(kind, "_get_grad_norm", taps.drawn_norm)
    wrap(kind, "_inner_training_loop", taps.training)
    for name in ("evaluation_loop", "prediction_loop"):
        wrap(kind, name, taps.agreed)
    wrap(kind, "store_flos", taps.summed_flos)
    wrap(kind, "_track_num_input_tokens", taps.summed_tokens)
    wrap(kind, "_save_rng_state", taps.in_the_notebooks_stream)
    wrap(kind, "_load_rng_state", taps.in_the_notebooks_stream)
    wrap(kind, "_save_checkpoint", taps.saved)
    wrap(kind, "save_model", taps.saved)


def wrap(kind: Any, name: str, by: Callable[..., Any]) -> None:
    """Let ``by(original, instance, *args, **kwargs)`` stand for a method, if there is one."""
    original = getattr(kind, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapped(instance: Any, *args: Any, **kwargs: Any) -> Any:
        return by(original, instance, *args, **kwargs)

    setattr(kind, name, wrapped)


def _see_one_device(session: Session, arguments: Any) -> None:
    """Let arguments made in a notebook with several GPUs count one: the batch is for all ranks."""
    if session.strategy.profile.in_one_process:
        return
    count = arguments.n_gpu.fget
    arguments.n_gpu = property(lambda args: min(1, count(args)))


class TrainerTap:
    """What stands around a Trainer's methods."""

    def __init__(self, session: Session) -> None:
        """Serve ``session``."""
        self.session = session
        self.evaluating = False

    def checked(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse arguments that distribute the training in another way."""
        arguments = getattr(trainer, "args", None) or kwargs.get("args")
        if arguments is None and len(args) > 1:
            arguments = args[1]
        for name in OWN_DISTRIBUTION:
            if getattr(arguments, name, None):
                refuse(self.session, f"TrainingArguments({name}=...)")
        return original(trainer, *args, **kwargs)

    def with_its_batch_size(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Leave out the search for a batch size: ranks would not find one together."""
        wanted = trainer.args.auto_find_batch_size
        if not wanted or not self.session.distributes:
            return original(trainer, *args, **kwargs)
        self.session.recorder.notice("auto-batch-size", notices.AUTO_BATCH_SIZE)
        trainer.args.auto_find_batch_size = False
        try:
            return original(trainer, *args, **kwargs)
        finally:
            trainer.args.auto_find_batch_size = wanted

    def drawn_norm(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Draw the norm of the gradients at every step."""
        norm = original(trainer, *args, **kwargs)
        if norm is not None:
            self.session.recorder.metric("grad_norm", trainer.state.global_step + 1, norm)
        return norm

    def training(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Follow the training loop from its first loader to its end."""
        self.session.accumulation.leave_to(
            "a Trainer", "TrainingArguments(..., gradient_accumulation_steps={})"
        )
        with Loop(self.session, trainer).followed():
            return original(trainer, *args, **kwargs)

    def agreed(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate on all samples, and decide by rank 0's metrics.

        The other ranks' metrics may differ from it in the last digit.
        """
        before, self.evaluating = self.evaluating, True
        share, self.session.share = self.session.share, None  # a batch of it is nobody's share
        try:
            output = original(trainer, *args, **kwargs)
        finally:
            self.evaluating, self.session.share = before, share
        if not trainer.is_in_train or not self.session.distributes:
            return output
        return output._replace(metrics=from_rank_0(output.metrics))

    def summed_flos(self, original: Any, trainer: Any) -> None:
        """Count the operations of all ranks, as one device would have done them all."""
        if self.session.distributes and trainer.is_in_train:
            (trainer.current_flos,) = sum_over_ranks([trainer.current_flos])
        original(trainer)

    def summed_tokens(self, original: Any, trainer: Any, inputs: Any) -> None:
        """Count the tokens of all ranks; a stand-in's count nothing."""
        before = trainer.state.num_input_tokens_seen
        original(trainer, inputs)
        share = self.session.share
        if share is None or trainer.args.include_num_input_tokens_seen == "no":
            return
        mine = 0 if share.empty else trainer.state.num_input_tokens_seen - before
        seen, weights = sum_over_ranks([mine, share.weight])
        trainer.state.num_input_tokens_seen = before + round(seen / weights)

    def in_the_notebooks_stream(self, original: Any, trainer: Any, *args: Any) -> None:
        """Save or load the random state that the notebook has, and not the rank's own."""
        with self.session.streams.notebooks():
            original(trainer, *args)

    def saved(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Go on when rank 0, which writes the files, has written them."""
        original(trainer, *args, **kwargs)
        if self.session.distributes:
            after_rank_0("saved")


class Loop:
    """One training loop of a Trainer."""

    def __init__(self, session: Session, trainer: Any) -> None:
        """Follow ``trainer``."""
        self.session = session
        self.trainer = trainer
        self.queue = Queue()
        self.loss: Any = 0.0
        self.left = 0

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Stand around the methods of this very trainer, also where a subclass has its own."""
        trainer, session = self.trainer, self.session
        own = {
            "get_train_dataloader": self._splitting(trainer.get_train_dataloader),
            "get_batch_samples": self._gathering(trainer.get_batch_samples),
            "training_step": self._stepping(trainer.training_step),
            "floating_point_ops": self._counting(trainer.floating_point_ops),
        }
        batch_size = trainer._train_batch_size
        gpus = getattr(trainer.args, "_n_gpu", 1)
        if gpus > 1 and trainer.args.n_gpu == 1:
            trainer._train_batch_size = max(1, batch_size // gpus)
        before = {name: vars(trainer)[name] for name in own if name in vars(trainer)}
        vars(trainer).update(own)
        session.draws_losses = False
        try:
            yield
        finally:
            session.draws_losses = True
            for name in own:
                vars(trainer).pop(name, None)
            vars(trainer).update(before)
            trainer._train_batch_size = batch_size
            session.ahead.end(self.queue)
            session.totals.clear()

    def _splitting(self, original: Callable[[], Any]) -> Callable[[], Any]:
        """Say of the loader that it will be split: its length is asked for before it is."""

        def get_train_dataloader() -> Any:
            loader = original()
            if self.session.distributes:
                self.session.loaders.was_split[getattr(loader, "base_dataloader", loader)] = True
            return loader

        return get_train_dataloader

    def _gathering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Let each of the batches of a step begin when it is its turn, and count their targets."""

        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            session = self.session
            session.ahead.end(self.queue)
            # A Trainer says so after it has the batch; the loader asks when it gives it.
            self.trainer.model.train()
            with session.ahead.into(self.queue):
                batches, count = original(*args, **kwargs)
            shares = [event.share for event in self.queue if event.share is not None]
            if count is not None and session.distributes and shares:
                count = self._count(batches, shares, count)
                session.totals[:] = [count]
            self.left = len(batches)
            return Batches(batches, session, self.queue), count

        return get_batch_samples

    def _count(self, batches: list[Any], shares: list[Share], local: Any) -> Any:
        """Return the number of targets that one device would count in the batches of a step.

        The losses of all ranks, divided by it, add up to one device's.
        """
        one = functools.partial(self.trainer._get_num_items_in_batch, device=torch.device("cpu"))
        counts = [0.0 if s.empty else float(one([b])) for b, s in zip(batches, shares, strict=True)]
        weights = [share.weight for share in shares]
        sums = sum_over_ranks([*counts, *weights])
        pairs = zip(sums[: len(counts)], sums[len(counts) :], strict=True)
        total = sum(count / weight for count, weight in pairs)
        return local.new_tensor(total) if torch.is_tensor(local) else round(total)

    def _stepping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Draw the loss of each optimizer step, as the Trainer would log it at every step."""

        def training_step(*args: Any, **kwargs: Any) -> Any:
            session = self.session
            session.step = self.trainer.state.global_step + 1
            loss = original(*args, **kwargs)
            self.loss, self.left = self.loss + loss, self.left - 1
            if self.left <= 0:
                session.recorder.metric("loss", session.step, self.loss)
                self.loss = 0.0
            return loss

        return training_step

    def _counting(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Count no operations of a rank that only stands in, and once what all ranks do."""

        def floating_point_ops(inputs: Any) -> Any:
            session, share = self.session, self.session.share
            if share is None:
                return original(inputs) / (session.world_size if session.distributes else 1)
            return 0 if share.empty else original(inputs)

        return floating_point_ops


class Batches(list[Any]):
    """The batches of a step: iterating over them, each one's step begins."""

    def __init__(self, batches: list[Any], session: Session, queue: Queue) -> None:
        """Hold ``batches``, whose steps wait in ``queue``."""
        super().__init__(batches)
        self._session, self._queue = session, queue

    def __iter__(self) -> Iterator[Any]:
        """Yield each batch when its step has begun; end the pass with the last one's."""
        for batch in super().__iter__():
            self._session.ahead.begin_next(self._queue)
            yield batch
        if not any(event.begins for event in self._queue):
            self._session.ahead.end(self._queue)
