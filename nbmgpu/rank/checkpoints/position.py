"""How far a run has trained when a checkpoint is written, and that again in a resumed one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nbmgpu.runs.checkpoint_description import CheckpointDescription

if TYPE_CHECKING:
    from nbmgpu.rank.session import TrainingSession


def training_position(session: TrainingSession) -> dict[str, Any]:
    """Return the fields of a ``CheckpointDescription`` that say so."""
    progress = session.progress
    return {
        "time": time.time(),
        "step": progress.trained_step,
        "loaded": progress.step + session.loader_events.current_batch.num_queued,
        "curves": dict(session.recorder.last_steps),
        "samples": progress.samples,
        "world_size": session.rank_info.world_size,
        "loss_scale": session.trained.options.loss_scale.state_dict(),
    }


def restore_position(session: TrainingSession, description: CheckpointDescription) -> None:
    """Go on counting from there; points of curves are recorded from now on."""
    progress = session.progress
    progress.step = description.loaded - session.loader_events.current_batch.num_queued
    progress.samples, progress.trained_step = description.samples, description.step
    session.trained.options.loss_scale.load_state_dict(description.loss_scale)
    session.recorder.drops_metrics = False
