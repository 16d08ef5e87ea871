"""The record of a run that is launched, or launched again."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import time
from typing import TYPE_CHECKING

from nbmgpu.engines.registry import get_engine
from nbmgpu.environment.packages import imported_in, versions_of
from nbmgpu.runs.record import KernelRecord, LaunchOptions, RunRecord, StoragePaths
from nbmgpu.strategies import profile_of
from nbmgpu.system.library_files import libraries_of
from nbmgpu.system.processes import creation_time, process_is_alive

if TYPE_CHECKING:
    from nbmgpu.engines.base import RunStorage
    from nbmgpu.options.run_options import RunOptions

    from .execution import Execution


def new_record(
    execution: Execution, run_id: str, storage: RunStorage, repeated: float | None
) -> RunRecord:
    """Return the record of a run of ``execution``, which this kernel launches.

    Args:
        execution: has been prepared.
        run_id: of the run.
        storage: of the run.
        repeated: when the first of the runs began that it repeats; None if there is none.
    """
    options = execution.options
    return RunRecord(
        id=run_id,
        created=time.time(),
        devices=list(execution.placement.devices),
        threads=execution.placement.threads,
        nodes=execution.placement.nodes,
        batch_line=execution.batch_line,
        options=LaunchOptions(
            strategy=options.strategy,
            batch=options.batch,
            seed=options.seed,
            timeout=options.time_limit,
            fresh=options.fresh,
            engine=options.engine,
            may_restart=options.may_restart and execution.held is None,
            verify=options.verified_seconds if execution.held is None else 0.0,
            repeated=repeated,
            values=dataclasses.asdict(options),
        ),
        kernel=_this_process(os.getcwd(), sys.path, execution.context.notebook),
        storage=_paths(storage),
        packages=_packages(execution),
    )


def _packages(execution: Execution) -> dict[str, str]:
    """Return versions of the packages that the cell uses, if other machines run it."""
    options = execution.options
    if not get_engine(options.engine, options.detach).crosses_network:
        return {}
    modules = execution.bundle.modules | imported_in(execution.cell.code)
    return versions_of([*modules, *profile_of(options.strategy).modules])


def record_of_replacement(
    failed: RunRecord, run_id: str, storage: RunStorage, options: RunOptions
) -> RunRecord:
    """Return the record of a run in place of ``failed``, which another process launches.

    Args:
        failed: the record of the run that it replaces.
        run_id, storage: of the new run.
        options: those of the failed run, with the checkpoint to go on from.
    """
    launch = dataclasses.replace(
        failed.options,
        repeated=failed.options.repeated or failed.created,
        verify=options.verified_seconds,
        values=dataclasses.asdict(options),
    )
    return dataclasses.replace(
        failed,
        id=run_id,
        created=time.time(),
        options=launch,
        kernel=kernel_or_this_process(failed.kernel),
        storage=_paths(storage),
    )


def kernel_or_this_process(kernel: KernelRecord) -> KernelRecord:
    """Return what launches a run in place of a kernel's: that, unless it has ended.

    A run of this machine counts as lost while it has neither a launcher nor a kernel.
    """
    if kernel.host != socket.gethostname() or process_is_alive(kernel.pid, kernel.create_time):
        return kernel
    return _this_process(kernel.cwd, kernel.search_path(), kernel.notebook)


def _this_process(cwd: str, sys_path: list[str], notebook: str) -> KernelRecord:
    sys_path = [path for path in sys_path if isinstance(path, str)]  # Python ignores others
    return KernelRecord(
        pid=os.getpid(),
        create_time=creation_time(os.getpid()),
        cwd=cwd,
        sys_path=sys_path,
        notebook=notebook,
        host=socket.gethostname(),
        python=sys.executable,
        libraries=libraries_of(sys_path),
    )


def _paths(storage: RunStorage) -> StoragePaths:
    return StoragePaths(storage.bundle.path, [each.path for each in storage.results])
