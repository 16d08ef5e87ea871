"""Patches of Lightning: its Trainer trains on one device, and nbmgpu distributes its loops.

A Trainer that is made in the notebook or in the cell stays a single-device Trainer, unaware of
the process group.  Its loops read a DataLoader that is split, and call ``backward`` and ``step``
like a plain loop.  The patches

- decide which of its loops train (``_trains``), and let evaluations draw the notebook's random
  numbers, the same on all ranks;
- write Lightning's files once, and use rank 0's decisions (``lightning_files``);
- refuse a distribution that the user has chosen (``_refuse``);
- reduce the values that training steps log, and show them as curves (``lightning_values``);
- disable its progress bars, as the panel shows progress.

The library has two names, ``lightning.pytorch`` and ``pytorch_lightning``, which are two copies
of the same code.  Both are patched.
"""

from __future__ import annotations

import contextlib
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.rank.data.loader_events import EventQueue
from nbmgpu.rank.reporting import notices
from nbmgpu.rank.session import TrainingSession
from nbmgpu.rank.source_analysis import batch_size_use, training_loops

from .lightning_copy import Copy
from .lightning_files import Coordination
from .lightning_values import LoggedValues

PACKAGES = ("lightning.pytorch", "pytorch_lightning")

TRAINED = (
    "_lightning_module", "_model", "_optimizers", "_lightning_optimizers", "lr_scheduler_configs",
)  # fmt: skip
"""Attributes of a strategy of Lightning that hold the model and its optimizers."""

_patched: set[str] = set()


def install(session: TrainingSession) -> None:
    """Patch the copies of Lightning that have been imported, each once.

    Under ``--strategy none`` Lightning finds the environment that torchrun would give it,
    and distributes by itself.
    """
    for package in PACKAGES:
        if hasattr(sys.modules.get(package), "Trainer") and package not in _patched:
            _patched.add(package)
            lightning = LightningPatch(session, Copy(package))
            if session.strategy.profile.shards_data:
                lightning.install()
            else:  # a rank has IPython's shell, but is not a notebook
                connector = "trainer.connectors.accelerator_connector"
                lightning.copy.replace(f"{connector}._IS_INTERACTIVE", False)


class LightningPatch:
    """The patches of one copy of Lightning."""

    def __init__(self, session: TrainingSession, copy: Copy) -> None:
        """Patch ``copy`` for ``session``."""
        self.session = session
        self.copy = copy
        self.of = copy.of
        self.queues: weakref.WeakKeyDictionary[Any, deque[EventQueue]] = weakref.WeakKeyDictionary()
        self.evaluated = 0
        self.coordination = Coordination(session.rank_info.rank, copy, session.strategy.join_save)

    def install(self) -> None:
        """Install all patches, for the rest of this process."""
        training_loops.library_checks.append(self._trains)
        self._patch_trainers()
        self._patch_fetchers()
        self._patch_training()
        self._patch_evaluation()
        self._disable_bars()
        self.coordination.install()
        session = self.session
        LoggedValues(
            session.rank_info,
            session.progress,
            session.losses,
            session.recorder,
            session.strategy.device,
            self.copy,
        ).install()

    def _trains(self, frame: types.FrameType | None) -> bool | None:
        """Return whether a loop of Lightning that begins in ``frame`` trains; None for others."""
        fit, epoch = self.of("loops.fit_loop"), self.of("loops.training_epoch_loop")
        loop_class = self.of("loops.loop")._Loop
        while frame is not None and frame.f_globals.get("__name__", "").startswith(
            self.copy.package
        ):
            loop = frame.f_locals.get("self")
            if isinstance(loop, loop_class):
                training = isinstance(loop, fit._FitLoop | epoch._TrainingEpochLoop)
                # Without backward passes it only reads data, such as for the batch statistics
                # of averaged weights.
                return training and not loop.trainer.fit_loop._skip_backward
            frame = frame.f_back
        return None

    def _patch_trainers(self) -> None:
        """Keep Trainers on the rank's device, and refuse those that distribute."""
        rank_device = self.session.strategy.device

        def connect(original: Any) -> Any:
            def init(connector: Any, *args: Any, **given: Any) -> None:
                _refuse(given.get("strategy", "auto"), given.get("num_nodes", 1))
                if rank_device == "cpu" and given.get("accelerator", "auto") == "auto":
                    given["accelerator"] = "cpu"  # also where the machine has a GPU
                given["devices"] = 1  # the requested number of devices is that of the ranks
                original(connector, *args, **given)

            return init

        def run(original: Any) -> Any:
            def call(trainer: Any, *args: Any, **kwargs: Any) -> Any:
                self.session.step_options.accumulation.refuse_in(
                    "a Trainer", "Trainer(..., accumulate_grad_batches={})"
                )
                with self._on_one_device(trainer._accelerator_connector):
                    self.coordination.agree_on_folders(trainer)
                    try:
                        return original(trainer, *args, **kwargs)
                    except SystemExit as end:
                        # Lightning exits on an interrupt; a rank still has results to send.
                        if isinstance(end.__context__, KeyboardInterrupt):
                            raise end.__context__ from None
                        raise

            return call

        connector = "trainer.connectors.accelerator_connector._AcceleratorConnector"
        self.copy.wrap(f"{connector}.__init__", connect)
        self.copy.wrap("trainer.call._call_and_handle_interrupt", run)

    @contextlib.contextmanager
    def _on_one_device(self, connector: Any) -> Iterator[None]:
        """Give a Trainer of the notebook the rank's device, and restore its own afterwards.

        With ``devices=2`` a Trainer in a notebook has chosen to fork processes; these are the
        ranks.
        """
        chosen, single = connector.strategy, self.of("strategies").SingleDeviceStrategy
        forks = getattr(chosen, "_start_method", "") == "fork" and chosen.num_nodes == 1
        if not forks:
            _refuse(chosen, getattr(chosen, "num_nodes", 1), "Trainer of the notebook")
        device = torch.device(self.session.strategy.device)
        if chosen.root_device.type == "cpu":
            device = chosen.root_device  # as the user has chosen
        if chosen.root_device == device and not forks:
            yield
            return
        on_cpu = device.type == "cpu"
        accelerator = self.of("accelerators").CPUAccelerator() if on_cpu else chosen.accelerator
        strategy = single(device, accelerator, chosen._checkpoint_io, chosen.precision_plugin)
        connector.strategy = strategy
        vars(strategy).update({name: getattr(chosen, name) for name in TRAINED})
        try:
            yield
        finally:
            connector.strategy = chosen
            vars(chosen).update({name: getattr(strategy, name) for name in TRAINED})

    def _patch_fetchers(self) -> None:
        """Begin a batch's step when it is handed out: loaders without a length are read ahead."""
        fetchers, session, queues = self.of("loops.fetchers"), self.session, self.queues

        def fetch(original: Any) -> Any:
            def next_(fetcher: Any) -> Any:
                if not isinstance(fetcher, fetchers._PrefetchDataFetcher):
                    return original(fetcher)
                queue = EventQueue()
                queues.setdefault(fetcher, deque()).append(queue)
                with session.loader_events.collect(queue):
                    return original(fetcher)

            return next_

        def hand_out(original: Any) -> Any:
            def next_(fetcher: Any) -> Any:
                batch = original(fetcher)
                queue = queues[fetcher].popleft()
                while queue:
                    session.loader_events.dispatch_next_batch(queue)
                return batch

            return next_

        def reset(original: Any) -> Any:
            def reset_fetcher(fetcher: Any) -> None:
                self._end_passes(fetcher)
                original(fetcher)

            return reset_fetcher

        self.copy.wrap("loops.fetchers._DataFetcher.__next__", fetch)
        self.copy.wrap("loops.fetchers._DataFetcher.reset", reset)
        self.copy.wrap("loops.fetchers._PrefetchDataFetcher.__next__", hand_out)

    def _end_passes(self, fetcher: Any) -> None:
        for queue in self.queues.pop(fetcher, ()):
            self.session.loader_events.finish(queue)

    def _patch_training(self) -> None:
        """End an epoch's passes with the epoch, and call a step after its backward pass."""

        def run(original: Any) -> Any:
            def epoch(loop: Any, fetcher: Any) -> None:
                if batch_size_use.function_counts_samples(
                    loop.trainer.lightning_module.training_step
                ):
                    self.session.recorder.notice("batch-sizes", notices.BATCH_SIZES)
                original(loop, fetcher)
                # Lightning counts batches and never exhausts the iterator: the pass would last
                # until the next epoch, and code in between would draw its random numbers.
                combined = fetcher.combined_loader._iterator
                for iterator in getattr(combined, "iterators", []):
                    if isinstance(iterator, types.GeneratorType):
                        iterator.close()
                self._end_passes(fetcher)

            return epoch

        def step(original: Any) -> Any:
            def optimizer_step(
                plugin: Any, optimizer: Any, model: Any, closure: Any, **more: Any
            ) -> Any:
                if not _steps_once(optimizer):
                    return original(plugin, optimizer, model=model, closure=closure, **more)
                # torch's optimizers do this first in step(); strategies see a plain loop.
                with torch.enable_grad():
                    result = plugin._wrap_closure(model, optimizer, closure)
                return optimizer.step(closure=lambda: result, **more)

            return optimizer_step

        def setup(original: Any) -> Any:
            def setup_optimizers(strategy: Any, trainer: Any) -> None:
                earlier = [*strategy.optimizers, *getattr(strategy, "_lightning_optimizers", [])]
                original(strategy, trainer)
                kept = {id(optimizer) for optimizer in strategy.optimizers}
                self.session.trained.registry.forget(o for o in earlier if id(o) not in kept)

            return setup_optimizers

        self.copy.wrap("strategies.strategy.Strategy.setup_optimizers", setup)
        self.copy.wrap("loops.training_epoch_loop._TrainingEpochLoop.run", run)
        self.copy.wrap("plugins.precision.precision.Precision.optimizer_step", step)

    def _patch_evaluation(self) -> None:
        """Evaluate the whole data on every rank, with the notebook's random numbers."""

        def run(original: Any) -> Any:
            def evaluate(loop: Any) -> Any:
                with self._evaluation(loop):
                    return original(loop)

            return evaluate

        def step(original: Any) -> Any:
            def one(loop: Any, *args: Any, **kwargs: Any) -> Any:
                self._progress(loop)
                return original(loop, *args, **kwargs)

            return one

        for loop, method in (
            ("loops.evaluation_loop._EvaluationLoop", "_evaluation_step"),
            ("loops.prediction_loop._PredictionLoop", "_predict_step"),
        ):
            self.copy.wrap(f"{loop}.run", run)
            self.copy.wrap(f"{loop}.{method}", step)
            # With gradients enabled its loader would be taken for one that trains.
            self.copy.wrap(f"{loop}.setup_data", torch.no_grad())

    @contextlib.contextmanager
    def _evaluation(self, loop: Any) -> Iterator[None]:
        """Leave the training step for the duration of an evaluation."""
        session = self.session
        outer, session.progress.shard = session.progress.shard, None
        mode, loop.inference_mode = loop.inference_mode, False  # collectives refuse such tensors
        self.evaluated = 0
        try:
            with session.streams.notebook_stream():
                yield
        finally:
            loop.inference_mode = mode
            session.progress.shard = outer
            if self.evaluated:
                self._progress(loop, done=True)

    def _progress(self, loop: Any, done: bool = False) -> None:
        self.evaluated += not done
        total = sum(loop.max_batches)
        self.session.recorder.progress(
            "evaluation",
            label=loop.trainer.state.stage.value.replace("_", " "),
            step=self.evaluated,
            total=int(total) if total < float("inf") else 0,
            done=done,
        )

    def _disable_bars(self) -> None:
        """Disable Lightning's progress bars: the panel shows progress."""
        for bar in ("TQDMProgressBar", "RichProgressBar"):
            self.copy.replace(f"callbacks.{bar}.is_enabled", property(lambda bar: False))


def _steps_once(optimizer: Any) -> bool:
    """Return whether an optimizer calls its closure once, before anything else."""
    own = type(optimizer).__module__.startswith("torch.optim")
    return own and not isinstance(optimizer, torch.optim.LBFGS)


def _refuse(strategy: Any, num_nodes: int, where: str = "Trainer") -> None:
    """Refuse a Trainer that distributes by itself.

    Raises:
        StrategyError: it does.
    """
    name = strategy if isinstance(strategy, str) else getattr(strategy, "strategy_name", "")
    if num_nodes == 1 and (name in ("auto", "single_device") or _is_single(strategy)):
        return
    asked = f"strategy={name or type(strategy).__name__!r}" if num_nodes == 1 else f"{num_nodes=}"
    family = next((f for f in ("deepspeed", "fsdp") if f in str(name)), "ddp")
    raise StrategyError(
        format_message(
            f"This {where} distributes by itself ({asked}), and so do the ranks of %%mgpu",
            "A Trainer under %%mgpu is written as for one device; --strategy chooses how ranks "
            "share its work. To let Lightning distribute: %%mgpu --strategy none",
            f"Trainer() without strategy= and num_nodes=, under %%mgpu --strategy {family}",
        )
    )


def _is_single(strategy: Any) -> bool:
    return any(cls.__name__ == "SingleDeviceStrategy" for cls in type(strategy).__mro__)
