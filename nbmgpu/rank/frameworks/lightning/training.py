"""Patches of Lightning's training loop: it ends its passes, and steps after backward passes."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from nbmgpu.rank.reporting import notices
from nbmgpu.rank.source_analysis import batch_size_use

from .fetchers import FetcherPatch
from .library import LightningLibrary

if TYPE_CHECKING:
    from nbmgpu.rank.reporting.recorder import Recorder
    from nbmgpu.rank.training.optimizer_registry import OptimizerRegistry


class TrainingPatch:
    """Lets the training loop of one copy of Lightning behave like a plain loop."""

    def __init__(
        self,
        registry: OptimizerRegistry,
        recorder: Recorder,
        fetchers: FetcherPatch,
        library: LightningLibrary,
    ) -> None:
        """Patch ``library``.

        Args:
            registry: the optimizers of this process.
            recorder: takes notices.
            fetchers: ends passes over loaders.
            library: the copy of Lightning.
        """
        self.registry = registry
        self.recorder = recorder
        self.fetchers = fetchers
        self.library = library

    def install(self) -> None:
        """Install the patches, for the rest of this process."""

        def run(original: Any) -> Any:
            def epoch(loop: Any, fetcher: Any) -> None:
                if batch_size_use.function_counts_samples(
                    loop.trainer.lightning_module.training_step
                ):
                    self.recorder.notice("batch-sizes", notices.BATCH_SIZES)
                original(loop, fetcher)
                # Lightning counts batches and never exhausts the iterator: the pass would last
                # until the next epoch, and code in between would draw its random numbers.
                combined = fetcher.combined_loader._iterator
                for iterator in getattr(combined, "iterators", []):
                    if isinstance(iterator, types.GeneratorType):
                        iterator.close()
                self.fetchers.end_passes(fetcher)

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
                self.registry.forget(o for o in earlier if id(o) not in kept)

            return setup_optimizers

        self.library.wrap("strategies.strategy.Strategy.setup_optimizers", setup)
        self.library.wrap("loops.training_epoch_loop._TrainingEpochLoop.run", run)
        self.library.wrap("plugins.precision.precision.Precision.optimizer_step", step)


def _steps_once(optimizer: Any) -> bool:
    """Return whether an optimizer calls its closure once, before anything else."""
    own = type(optimizer).__module__.startswith("torch.optim")
    return own and not isinstance(optimizer, torch.optim.LBFGS)
