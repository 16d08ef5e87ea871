"""The table of all events, and which of them a full disk may cost."""

from __future__ import annotations

from .events import (
    CheckpointWritten,
    Display,
    Ended,
    Event,
    Exited,
    Failure,
    Hang,
    Heartbeat,
    Measurements,
    Metrics,
    Notice,
    ParameterShards,
    Progress,
    Restart,
    Started,
    Status,
    Stderr,
    StepDigest,
    TensorBoardFolder,
    Verified,
)
from .profile_event import StepProfile

EVENT_TYPES: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        Started, Status, Metrics, Progress, Display, Stderr, Heartbeat, Measurements,
        CheckpointWritten, ParameterShards, StepDigest, Notice, Restart, Failure, Exited, Hang,
        Verified, TensorBoardFolder, StepProfile, Ended,
    )
}  # fmt: skip

HIGH_VOLUME = (Metrics, Progress, Display, Stderr, Heartbeat)
"""Frequent events; on a full disk they are dropped, and leave the reserved space to others."""

NOT_AWAITING_SPACE = (Failure, Restart, Hang)
"""Events that raise an ``OSError`` on a full disk, as the process then does something else."""
