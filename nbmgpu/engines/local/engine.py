"""The engine for ranks on this machine, and that for ranks that go on when the kernel ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from nbmgpu.engines.base import Engine, RunHandle, RunStorage
from nbmgpu.errors import LaunchError
from nbmgpu.runs.held_ranks import hand_on
from nbmgpu.system.processes import process_is_alive

from .client import fork_server_client

if TYPE_CHECKING:
    from nbmgpu.devices.placement import Placement
    from nbmgpu.options.run_options import RunOptions
    from nbmgpu.runs.run import Run
    from nbmgpu.serialization.storage import Storage

START_TIMEOUT = 120.0
"""Seconds within which a launcher must report; a busy fork server may take a while to fork it."""

POLL = 0.01
"""Seconds between two checks whether a launcher has reported."""


class LocalEngine(Engine):
    """Forks ranks from a fork server that lives as long as the kernel.

    Modules beyond the standard library are imported when they are needed: ``%load_ext`` waits for
    this one.
    """

    outlives_kernel = False

    def detached(self) -> Engine:
        """Return the engine whose launchers do not end with the fork server."""
        return DetachedEngine()

    def place(self, options: RunOptions) -> Placement:
        """Choose among the devices of this machine."""
        from nbmgpu.devices.placement import place_ranks
        from nbmgpu.devices.probe import probe

        return place_ranks(options, probe())

    def allocate(self, folder: Path, nbytes: int, world_size: int) -> RunStorage:
        """Return memory that ranks map, kept from the last run if possible, or files on the disk.

        The result of a rank is about as large as the bundle, if it is rank 0's.
        """
        from nbmgpu.serialization.storage import storage_pool

        names = ["bundle", *(f"result-{rank}" for rank in range(world_size))]
        taken: list[tuple[str, Storage]] = []
        try:
            for name in names:
                taken.append((name, storage_pool.acquire(folder, name, nbytes)))
        except BaseException:
            for name, storage in reversed(taken):
                storage_pool.release(name, storage)
            raise
        bundle, *results = (storage for _, storage in taken)
        return RunStorage(bundle, tuple(results))

    def launch(self, run: Run) -> RunHandle:
        """Ask the fork server for a launcher."""
        client = fork_server_client()
        client.launch(run)
        return client

    def hand_on(self, held: Run, run: Run | None) -> RunHandle:
        """Write the next run's folder into that of the last one, where launcher and ranks look."""
        try:
            hand_on(held.folder, None if run is None else run.folder)
        except OSError as error:
            raise LaunchError(f"The ranks that are held cannot be reached: {error}") from error
        return fork_server_client()

    def release(self, storage: RunStorage, in_use: bool) -> None:
        """Keep memory for the next run, which then writes only what differs."""
        from nbmgpu.serialization.storage import storage_pool

        results = [(f"result-{rank}", each) for rank, each in enumerate(storage.results)]
        for name, each in reversed([("bundle", storage.bundle), *results]):
            if in_use:  # by ranks that would not end
                each.close()
            else:
                storage_pool.release(name, each)

    def preload(self, modules: Iterable[str] = ()) -> None:
        """Start the fork server; let it import ``modules`` and what this process has imported."""
        fork_server_client().preload(modules)

    def preload_cpu_seconds(self) -> float:
        """Return the CPU time of the fork server and all its children."""
        return fork_server_client().cpu_seconds()

    def is_alive(self, run: Run) -> bool:
        """Return whether the launcher runs, or the kernel that has just asked for one."""
        launcher = run.view.launcher
        if launcher is not None:
            return process_is_alive(launcher.pid, launcher.create_time)
        record = run.record
        kernel_is_alive = process_is_alive(record.kernel.pid, record.kernel.create_time)
        return kernel_is_alive and time.time() - record.created < START_TIMEOUT

    def stop(self, run: Run, force: bool, requested: bool) -> None:
        """Signal the launcher if it cannot read the request; a signal takes no space on a disk."""
        launcher = run.view.launcher
        if requested or launcher is None:
            return
        if process_is_alive(launcher.pid, launcher.create_time):
            os.kill(launcher.pid, signal.SIGTERM)


class DetachedEngine(LocalEngine):
    """Forks ranks as ``LocalEngine``, with files as storage, and a guard for each launcher."""

    outlives_kernel = True

    def detached(self) -> Engine:
        """Return this engine."""
        return self

    def allocate(self, folder: Path, nbytes: int, world_size: int) -> RunStorage:
        """Return files in the run folder: memory would end with the kernel."""
        return RunStorage.in_files(folder, nbytes, world_size)

    def send_bundle(self, run: Run) -> None:
        """Wait until the launcher has started: from then on, the run needs this kernel no more.

        Raises:
            LaunchError: it does not start.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            run.refresh()
            if run.view.launcher is not None or run.view.ended is not None:
                return
            if error := fork_server_client().error():
                raise LaunchError(error)
            if time.monotonic() > deadline:
                raise LaunchError(f"The launcher has not started within {START_TIMEOUT:.0f} s.")
            time.sleep(POLL)

    def sync(self, run: Run) -> None:
        """Do nothing: there is one machine."""

    def release(self, storage: RunStorage, in_use: bool) -> None:
        """Remove the files."""
        storage.close()
