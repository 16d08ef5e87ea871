"""Patches of torchmetrics: a metric counts what its rank sees.

In an evaluation every rank sees all samples, so metrics are not synchronised over the process
group.  In a training loop a rank sees its shard of each batch, which is reported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from nbmgpu.patches import PatchStack
from nbmgpu.rank.reporting import notices

if TYPE_CHECKING:
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.reporting.recorder import Recorder
    from nbmgpu.rank.session import TrainingSession


def install(session: TrainingSession) -> None:
    """Report updates of metrics in a training loop, and never synchronise metrics."""
    if not session.rank_info.shards_data:
        return
    patches = PatchStack()
    reporting = functools.partial(_reporting, session.progress, session.recorder)
    patches.wrap("torchmetrics.Metric._wrap_update", reporting)
    patches.replace("torchmetrics.Metric.sync", _no_sync)


def _no_sync(*args: Any, **kwargs: Any) -> None:
    """Do nothing: the metrics of other ranks are not parts of this one."""


def _reporting(progress: TrainingProgress, recorder: Recorder, wrap: Any) -> Any:
    """Return a ``_wrap_update``, which is called when a metric is created or unpickled."""

    @functools.wraps(wrap)
    def wrapped(instance: Any, update: Callable[..., None]) -> Callable[..., None]:
        counted: Callable[..., None] = wrap(instance, update)
        if type(instance).__name__ == "_ResultMetric":  # Lightning's: its values are global
            return counted

        @functools.wraps(counted)
        def reported(*args: Any, **kwargs: Any) -> None:
            if progress.has_part and torch.is_grad_enabled():
                recorder.notice("sharded-metric", notices.SHARDED_METRIC)
            counted(*args, **kwargs)

        return reported

    return wrapped
