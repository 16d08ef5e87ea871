"""The state that all handlers of one server share, and their thread pools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from nbmgpu.runs.folder import runs_root

from .device_monitor import DeviceMonitor
from .disk_usage import DiskUsageReader
from .open_runs import OpenRuns
from .payloads import DiskUsage
from .run_folders import run_ids
from .run_list import RunListReader
from .tensorboard_processes import TensorBoards

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 4
"""Threads that read files. Reads are short and mostly wait for the disk."""

ACTION_THREADS = 2
"""Threads for actions such as Stop, so that they never wait for reads."""

KEY = "nbmgpu"
"""The key of the services in the server's settings."""


class Services:
    """The run list, sizes of runs, devices, open runs and TensorBoards of one server."""

    def __init__(self) -> None:
        """Create the services; threads start with the first request."""
        self.opened = OpenRuns()
        self.lines = RunListReader(self.opened)
        self.disk = DiskUsageReader()
        self.devices = DeviceMonitor()
        self.tensorboards = TensorBoards()
        self._threads = ThreadPoolExecutor(THREADS, "nbmgpu")
        self._action_threads = ThreadPoolExecutor(
            ACTION_THREADS, thread_name_prefix="nbmgpu-action"
        )
        self._disk_thread = ThreadPoolExecutor(1, "nbmgpu-disk")

    async def run_in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` in a thread, so that file access does not block the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def run_action(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function``, which changes something, in a thread that is not used for reads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._action_threads, lambda: function(*args, **kwargs))

    async def disk_usage(self) -> DiskUsage:
        """Return what runs take on the disk, read in a thread of its own.

        Many folders on a slow file system take seconds, for which no other read must wait.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._disk_thread, self.disk.read)

    def problems(self) -> list[str]:
        """Return configuration problems; a runs folder that does not exist yet is none."""
        found = list(self.devices.problems)
        try:
            run_ids()
        except FileNotFoundError:
            pass
        except OSError as error:
            found.append(f"The folder of runs, {runs_root()}, cannot be read: {error.strerror}.")
        return found

    def close(self) -> None:
        """Stop the threads, the device monitor and the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._action_threads.shutdown(wait=False, cancel_futures=True)
        self._disk_thread.shutdown(wait=False, cancel_futures=True)
        self.tensorboards.close()
        self.devices.close()
