"""``python -m nbmgpu.kernel.restart_run``: starts a run again whose kernel cannot.

The launcher of a run that outlives its kernel calls it when a rank was killed, or the run hung:
nobody may be there to do it.  The new run gets the bundle of the failed one.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from pathlib import Path

from nbmgpu.engines.registry import get_engine
from nbmgpu.options.run_options import RunOptions
from nbmgpu.rank.command_line import restore_variables
from nbmgpu.report.digest import write_digest
from nbmgpu.runs import replacement
from nbmgpu.runs.folder import COLLECTED_FILE, ROOT_VARIABLE, new_run_id, runs_root
from nbmgpu.runs.record import KernelRecord
from nbmgpu.runs.run import Run
from nbmgpu.serialization.stored_bundle import StoredBundle
from nbmgpu.system.processes import process_is_alive

from . import notices
from .launched_run import LaunchedRun
from .resumed_options import earlier_curves, options_after_failure, reason_to_restart
from .run_record import record_of_replacement

KERNEL_GRACE = 10.0
"""Seconds in which the kernel may start the run again, unless it has ended."""

POLL = 0.2
"""Seconds between two looks whether it does."""


def main() -> None:
    """Start the run again that the command line names, if there is a reason."""
    parser = argparse.ArgumentParser(prog="python -m nbmgpu.kernel.restart_run")
    parser.add_argument("folder", type=Path, help="the run folder")
    parser.add_argument("--restore-variables", default="{}", help="as of nbmgpu.rank")
    given = parser.parse_args()
    _reset_signals()
    failed = Run(given.folder)
    restore_variables(given.restore_variables)
    kernel = failed.record.kernel
    os.chdir(kernel.cwd)
    sys.path[:] = kernel.search_path()
    if runs_root() != given.folder.parent:
        os.environ[ROOT_VARIABLE] = str(given.folder.parent)
    start_again(failed)


def _reset_signals() -> None:
    """Undo what the launcher has ignored: ranks would inherit it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # A scheduler that ends the job gives this process some time.  Programs that it starts do not
    # inherit a handler.
    signal.signal(signal.SIGTERM, lambda *_: None)


def start_again(failed: Run) -> Run | None:
    """Start a run in place of ``failed``; return it, or None if there is no reason to.

    Raises:
        LaunchError: the engine cannot start its ranks.
        OSError: the bundle cannot be moved.
    """
    options = RunOptions(**failed.record.options.values)
    reason = reason_to_restart(options, failed)
    bundle = StoredBundle(failed.record.storage.bundle)
    if not (reason and bundle.is_complete and _is_left_alone(failed) and replacement.claim(failed)):
        return None
    try:
        run = _launch(failed, bundle, options, reason)
    except BaseException:
        replacement.withdraw(failed)
        raise
    replacement.publish(failed, run)
    write_digest(failed)
    return run


def _launch(failed: Run, bundle: StoredBundle, options: RunOptions, reason: str) -> Run:
    engine = get_engine(options.engine, options.detach)
    resumed = options_after_failure(options, failed)
    record, run_id = failed.record, new_run_id()
    storage = engine.allocate(failed.folder.parent / run_id, 0, record.world_size)
    bundle.move_to(storage.bundle, run_id)
    launched = LaunchedRun.create(
        record_of_replacement(record, run_id, storage, resumed.options),
        failed.cell,
        engine,
        storage,
    )
    told = {
        "restarted": reason,
        "resumed": resumed.notice,
        "outlives-kernel": notices.outlives_kernel(resumed.options, run_id),
    }
    launched.start(bundle, told, ())
    launched.continue_curves(earlier_curves(resumed.options))
    return launched.run


def _is_left_alone(failed: Run) -> bool:
    """Wait until the kernel has had time to start the run again; return whether it has not."""
    deadline = time.monotonic() + KERNEL_GRACE
    while _may_be_alive(failed.record.kernel) and time.monotonic() < deadline:
        if replacement.is_claimed(failed):
            return False
        time.sleep(POLL)
    return not (failed.folder / COLLECTED_FILE).exists()  # else the kernel has given it up


def _may_be_alive(kernel: KernelRecord) -> bool:
    """Return whether a kernel is alive; on another machine that is not known."""
    is_here = kernel.host == socket.gethostname()
    return not is_here or process_is_alive(kernel.pid, kernel.create_time)


if __name__ == "__main__":
    main()
