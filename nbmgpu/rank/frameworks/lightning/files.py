"""Patches of Lightning's files: rank 0 writes them and makes the decisions.

Every rank runs the same Trainer, which sees a single process.  Without these patches all of them
would number a logger's folder, and check for, write and remove a checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from nbmgpu.rank.store.broadcast import barrier, broadcast_from_rank_0

from .library import LightningLibrary


class Coordination:
    """Lets all ranks make the same calls, and rank 0 write.

    On every rank the Trainer is global rank zero in a world of size 1, so that all of them build
    a checkpoint: under a sharded strategy that is collective.  Only rank 0 writes it, and only
    rank 0 calls what Lightning marks as ``rank_zero_only``: loggers, warnings, logs.
    """

    def __init__(
        self, rank: int, library: LightningLibrary, join_save: Callable[[Any], None]
    ) -> None:
        """Patch ``library`` on ``rank``; ``join_save`` joins the gathers of a checkpoint."""
        self.rank = rank
        self.library = library
        self.of = library.of
        self.join_save = join_save

    def install(self) -> None:
        """Install the patches, for the rest of this process."""
        library = self.library
        library.replace("utilities.rank_zero.rank_zero_only.rank", self.rank)
        single = "strategies.SingleDeviceStrategy"
        library.replace(f"{single}.barrier", lambda strategy, *args, **kwargs: barrier())
        library.replace(
            f"{single}.broadcast", lambda strategy, obj, src=0: broadcast_from_rank_0(obj)
        )
        library.replace(
            f"{single}.reduce_boolean_decision",
            lambda strategy, decision, all=True: broadcast_from_rank_0(decision),
        )
        strategy = "strategies.strategy.Strategy"
        library.wrap(
            f"{strategy}.save_checkpoint", lambda write: self._on_rank_0(write, self._gather)
        )
        library.wrap(f"{strategy}.remove_checkpoint", self._on_rank_0)
        if self.rank:  # rank 0 makes the link, and calls a barrier afterwards
            checkpoint = "callbacks.model_checkpoint.ModelCheckpoint"
            no_link = staticmethod(lambda *args: barrier())
            library.replace(f"{checkpoint}._link_checkpoint", no_link)
        data = "trainer.connectors.data_connector"
        library.wrap(f"{data}._DataConnector.prepare_data", self._rank_0_first)
        # No warning that values differ between ranks, and no barrier of Lightning's own.
        results = "trainer.connectors.logger_connector.result"
        library.replace(f"{results}._distributed_is_initialized", lambda: False)
        library.replace(f"{data}._InfiniteBarrier", contextlib.nullcontext)

    def _on_rank_0(self, write: Any, on_others: Any = None) -> Any:
        """Call ``write`` on rank 0 while the others wait, or call ``on_others``."""

        def written(*args: Any, **kwargs: Any) -> None:
            barrier()  # no rank still reads the file that is replaced or removed
            try:
                if self.rank == 0:
                    write(*args, **kwargs)
                elif on_others is not None:
                    on_others(*args, **kwargs)
            except OSError:
                barrier()  # the others wait there, as the cell may go on without the file
                raise
            barrier()

        return written

    def _gather(self, _: Any, checkpoint: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Take part in the gathers of rank 0's pickling, where a model is sharded."""
        self.join_save(checkpoint)

    def _rank_0_first(self, original: Any) -> Any:
        """Let rank 0 prepare the data, and the others find the result."""

        def prepare_data(connector: Any) -> None:
            if self.rank == 0:
                original(connector)
            barrier()
            if self.rank:
                original(connector)

        return prepare_data

    def agree_on_folders(self, trainer: Any) -> None:
        """Use rank 0's number of a logger's folder: others would see it and take the next."""
        loggers = self.of("loggers")
        for logger in trainer.loggers:
            if isinstance(logger, loggers.CSVLogger | loggers.TensorBoardLogger):
                logger._version = broadcast_from_rank_0(logger.version if self.rank == 0 else None)
