"""Finds the run that goes on in place of one that is over.

A run whose rank was killed, or that hung, starts again from its checkpoint.  One whose numbers
would differ starts again with whole batches; its folder is removed.
"""

from __future__ import annotations

import time

from nbmgpu.engines.registry import get_engine
from nbmgpu.options.run_options import RunOptions
from nbmgpu.runs import replacement
from nbmgpu.runs.run import Run
from nbmgpu.runs.run_list import iter_runs
from nbmgpu.system.processes import process_is_alive

from .resumed_options import reason_to_restart

CLAIM_TIMEOUT = 60.0
"""Seconds within which the kernel, or the launcher, says that it starts a run again."""

RESTARTED = "restarted"
"""The notice of a run that was started again."""

POLL = 0.1
"""Seconds between two looks."""


def wait_for_following_run(run: Run) -> Run | None:
    """Return the run that goes on in place of ``run``, which is over, once it has started.

    Returns:
        None if there is no reason to start it again, or nobody does.
    """
    deadline = time.monotonic() + CLAIM_TIMEOUT
    while (following := _following_run(run)) is None:
        if replacement.is_claimed(run):
            deadline = max(deadline, time.monotonic() + CLAIM_TIMEOUT)
        elif time.monotonic() > deadline or not _is_to_start_again(run):
            return _following_run(run)
        time.sleep(POLL)
    return following


def was_removed(run: Run) -> bool:
    """Return whether the folder of ``run`` is gone, as when it starts again with whole batches."""
    return not run.folder.exists()


def _following_run(run: Run) -> Run | None:
    if (found := replacement.replacement_of(run)) is not None:
        return found
    if not (was_removed(run) or run.view.restart_reason):
        return None
    kernel = run.record.kernel
    for other in reversed([other for other in iter_runs() if other.id > run.id]):
        same = (other.record.kernel.pid, other.record.kernel.create_time)
        other.refresh()
        if same == (kernel.pid, kernel.create_time) and RESTARTED in other.view.notices:
            return other
    return None


def _is_to_start_again(run: Run) -> bool:
    options, kernel = run.record.options, run.record.kernel
    by_kernel = process_is_alive(kernel.pid, kernel.create_time)
    if was_removed(run) or run.view.restart_reason:
        return by_kernel
    may = by_kernel or get_engine(options.engine, options.detached).outlives_kernel
    return may and bool(reason_to_restart(RunOptions(**options.values), run))
