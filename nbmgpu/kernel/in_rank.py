"""Whether this process is a rank, for functions that both notebooks and cells call."""

from __future__ import annotations

from nbmgpu.errors import LaunchError, format_message
from nbmgpu.rank import current


def metrics_log() -> current.MetricsLog | None:
    """Return what records the metrics of this rank; None in a notebook."""
    return current.metrics_log


def shared_batches() -> current.BatchSharing | None:
    """Return what divides the batches of this rank; None in a notebook."""
    return current.shared_batches


def refuse_inside_a_rank() -> None:
    """Raise LaunchError in a rank: runs do not nest."""
    if metrics_log() is not None:
        what = "This is a rank of a run already"
        allowed = "A run cannot start another one"
        raise LaunchError(
            format_message(what, allowed, "the call in a cell of its own, without %%mgpu")
        )
