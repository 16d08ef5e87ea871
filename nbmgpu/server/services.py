"""What all handlers of one server share, and the threads in which files are read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from nbmgpu.runs.run import runs_root

from .device_usage import Meters
from .open_runs import OpenRuns
from .run_folders import run_ids
from .run_list import RunLines

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 4
"""Reading is short and mostly waits for the disk; a few threads serve many pages."""

WISHES = 2
"""Threads for what people click on, such as Stop: they wait for no list."""

KEY = "nbmgpu"
"""Where the server's settings have the services."""


class Services:
    """The lines of all runs, the devices, and the runs looked into, for one server."""

    def __init__(self) -> None:
        """Start no thread and read nothing yet."""
        self.lines = RunLines()
        self.meters = Meters()
        self.opened = OpenRuns()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="nbmgpu")
        self._wishes = ThreadPoolExecutor(WISHES, thread_name_prefix="nbmgpu-wish")

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` in a thread: the server's event loop never waits for a file."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def fulfil(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function``, which changes something, in a thread that no reader keeps busy."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._wishes, lambda: function(*args, **kwargs))

    def problems(self) -> list[str]:
        """Return what is missing or in the way; that there is no folder of runs yet is not."""
        found = list(self.meters.problems)
        try:
            run_ids()
        except FileNotFoundError:
            pass
        except OSError as error:
            found.append(f"The folder of runs, {runs_root()}, cannot be read: {error.strerror}.")
        return found

    def close(self) -> None:
        """Stop the threads and let the devices go."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._wishes.shutdown(wait=False, cancel_futures=True)
        self.meters.close()
