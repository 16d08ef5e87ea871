"""What Lightning writes is written once, and what it decides is decided once.

Every rank runs the same Trainer and believes to be alone.  They would all number a
logger's folder, ask whether a checkpoint exists, write and remove it.
"""

from __future__ import annotations

import contextlib
from typing import Any

from nbmgpu.rank import session
from nbmgpu.rank.store.broadcast import barrier, broadcast_from_rank_0

from .lightning_copy import Copy, replace


class Coordination:
    """Lets all ranks do the same, and one of them write.

    Every rank is told that it is alone (``is_global_zero``, a world size of 1), so that all
    of them build a checkpoint: under a sharded strategy that is collective.  Only the
    writing itself is rank 0's, and so is what Lightning marks as ``rank_zero_only``:
    loggers, warnings, logs.
    """

    def __init__(self, rank: int, copy: Copy) -> None:
        """Be on ``rank``, and serve ``copy``."""
        self.rank = rank
        self.of = copy.of

    def install(self) -> None:
        """Put the taps in place."""
        self.of("utilities.rank_zero").rank_zero_only.rank = self.rank
        single = self.of("strategies").SingleDeviceStrategy
        single.barrier = lambda strategy, *args, **kwargs: barrier()
        single.broadcast = lambda strategy, obj, src=0: broadcast_from_rank_0(obj)
        single.reduce_boolean_decision = lambda strategy, decision, all=True: broadcast_from_rank_0(
            decision
        )
        strategy = self.of("strategies.strategy").Strategy
        replace(strategy, "save_checkpoint", lambda write: self._alone(write, self._attend))
        replace(strategy, "remove_checkpoint", self._alone)
        checkpoint = self.of("callbacks.model_checkpoint").ModelCheckpoint
        if self.rank:  # rank 0 makes the link, and meets the others afterwards
            checkpoint._link_checkpoint = staticmethod(lambda *args: barrier())
        self._prepare_data_first()
        # A warning that values differ between ranks, and a barrier of Lightning's own.
        results = self.of("trainer.connectors.logger_connector.result")
        results._distributed_is_initialized = lambda: False
        self.of("trainer.connectors.data_connector")._InfiniteBarrier = contextlib.nullcontext

    def _alone(self, write: Any, meanwhile: Any = None) -> Any:
        """Let rank 0 do it while the others wait, or do something ``meanwhile``."""

        def written(*args: Any, **kwargs: Any) -> None:
            barrier()  # nobody reads what is to be replaced or removed
            if self.rank == 0:
                write(*args, **kwargs)
            elif meanwhile is not None:
                meanwhile(*args, **kwargs)
            barrier()

        return written

    def _attend(self, _: Any, checkpoint: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Gather with rank 0 what it pickles, where a model is spread over ranks."""
        assert session.current is not None
        session.current.strategy.attend(checkpoint)

    def _prepare_data_first(self) -> None:
        """Let rank 0 prepare the data, and the others find what is there."""

        def prepare(original: Any) -> Any:
            def in_turn(connector: Any) -> None:
                if self.rank == 0:
                    original(connector)
                barrier()
                if self.rank:
                    original(connector)

            return in_turn

        connector = self.of("trainer.connectors.data_connector")._DataConnector
        replace(connector, "prepare_data", prepare)

    def agree_on_folders(self, trainer: Any) -> None:
        """Number a logger's folder once: the others would find rank 0's and take the next."""
        loggers = self.of("loggers")
        for logger in trainer.loggers:
            if isinstance(logger, loggers.CSVLogger | loggers.TensorBoardLogger):
                logger._version = broadcast_from_rank_0(logger.version if self.rank == 0 else None)
