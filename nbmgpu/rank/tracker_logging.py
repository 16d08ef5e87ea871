"""Tells experiment trackers about this rank: see ``nbmgpu.trackers``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nbmgpu.runs.events import TensorBoardFolder
from nbmgpu.trackers.base import RankLogging

from .files import writes
from .store import broadcast

if TYPE_CHECKING:
    from .rank_info import RankInfo
    from .reporting.recorder import Recorder


def rank_logging(rank_info: RankInfo, recorder: Recorder, repeated: float | None) -> RankLogging:
    """Return what trackers need to know of the rank.

    Args:
        rank_info: position of the rank.
        recorder: takes metrics.
        repeated: as in the record of the run.
    """
    return RankLogging(
        rank=rank_info.rank,
        shards_data=rank_info.shards_data,
        broadcast=broadcast.broadcast_keyed,
        own_files=writes.unpatched,
        may_restart=lambda: recorder.restart is not None and recorder.restart.possible,
        resumed_from=repeated,
        is_resuming=lambda: recorder.drops_metrics,
        writes_tensorboard=lambda folder: _report(folder, recorder),
    )


def _report(folder: str, recorder: Recorder) -> None:
    place = folder if "://" in folder else os.path.abspath(folder)
    recorder.events.emit(TensorBoardFolder, folder=place)
