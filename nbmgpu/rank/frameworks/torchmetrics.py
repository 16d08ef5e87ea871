"""torchmetrics in a rank: a metric counts what its rank sees.

In an evaluation that is everything, on every rank; so metrics do not add up over the
process group that they would find.  In a training loop it is the rank's share of the
batch, which the user is told.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from nbmgpu.rank.reporting import notices
from nbmgpu.rank.session import Session


def tap(session: Session) -> None:
    """Watch the updates of every metric, and keep each to its rank."""
    if not session.distributes:
        return
    metric: Any = sys.modules["torchmetrics"].Metric
    wrap = metric._wrap_update  # of each instance, when it is made or unpickled

    @functools.wraps(wrap)
    def wrapped(instance: Any, update: Callable[..., None]) -> Callable[..., None]:
        counted: Callable[..., None] = wrap(instance, update)
        if type(instance).__name__ == "_ResultMetric":  # of Lightning: what it logs is global
            return counted

        @functools.wraps(counted)
        def watched(*args: Any, **kwargs: Any) -> None:
            share = session.share
            if share is not None and share.is_part and torch.is_grad_enabled():
                session.recorder.notice("metric-share", notices.METRIC_SHARE)
            counted(*args, **kwargs)

        return watched

    def sync(*args: Any, **kwargs: Any) -> None:
        """Do nothing: the other ranks' metrics are not parts of this one."""

    metric._wrap_update, metric.sync = wrapped, sync
