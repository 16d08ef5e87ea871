"""Builds the list of runs; the entries of finished runs are cached."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbmgpu.report.digest import fingerprint, read_digest, write_digest
from nbmgpu.report.held_memory import with_held_ranks
from nbmgpu.report.run_line import KernelStatus, RunLine, with_current_labels
from nbmgpu.system.processes import process_is_alive

from .open_runs import OpenRun, OpenRuns
from .payloads import RunList
from .run_folders import NoSuchRunError, run_folder, run_ids

logger = logging.getLogger(__name__)

DEFAULT_LIMIT = 200
"""Default number of runs in a list."""

MAX_LIMIT = 500
"""Maximum number of runs in a list."""

TIME_LIMIT = 0.2
"""Seconds after which runs that were never read are left for the next request."""

MAX_CACHED = 2000
"""Maximum number of cached entries, of a few kilobytes each."""


@dataclass(frozen=True)
class Entry:
    """The cached entry of a run, and the open run until it is over."""

    seen: list[Any]
    line: RunLine
    open: OpenRun | None = None


class DeadlineError(Exception):
    """The time limit is exceeded, and the next run was never read."""


class RunListReader:
    """Reads and caches the entries of runs. Thread-safe."""

    def __init__(self, opened: OpenRuns | None = None) -> None:
        """Start with an empty cache; runs in progress are read through ``opened``."""
        self._opened = opened or OpenRuns()
        self._entries: dict[str, Entry] = {}
        self._broken: dict[str, list[Any]] = {}
        self._lock = threading.Lock()

    def newest(self, limit: int = DEFAULT_LIMIT, before: str = "") -> RunList:
        """Return the newest ``limit`` runs, or those whose names sort before ``before``.

        The list is shorter, with ``more`` set, if many runs are read for the first time.

        Raises:
            OSError: The folder of all runs cannot be read.
        """
        limit, deadline = max(0, min(limit, MAX_LIMIT)), time.monotonic() + TIME_LIMIT
        with self._lock:
            try:
                names = run_ids()
            except FileNotFoundError:
                names = []  # the first run creates it
            self._forget(names)
            kernels = KernelLiveness()
            lines: list[RunLine] = []
            for name in names:
                if before and name >= before:
                    continue
                if len(lines) == limit:
                    return RunList(lines, more=True)
                late = bool(lines) and time.monotonic() > deadline
                try:
                    lines.append(self._line(name, kernels, late))
                except DeadlineError:
                    return RunList(lines, more=True)
                except (NoSuchRunError, OSError):
                    continue  # being created or deleted, damaged, or of another user
            return RunList(lines, more=False)

    def _line(self, name: str, kernels: KernelLiveness, late: bool) -> RunLine:
        folder = run_folder(name)
        entry, seen = self._entries.get(name), fingerprint(folder)
        if self._broken.get(name) == seen:
            raise NoSuchRunError(f"Run {name} could not be read before")
        if entry is None or entry.open or entry.seen != seen:
            entry = self._entries[name] = self._read(folder, seen, entry, late)
        line = with_current_labels(entry.line, folder)
        if line.kernel.alive != (alive := kernels.alive(line.kernel)):
            kernel = dataclasses.replace(line.kernel, alive=alive)
            line = dataclasses.replace(line, kernel=kernel)
        if line is not entry.line:
            self._entries[name] = dataclasses.replace(entry, line=line)
        return with_held_ranks(line, folder)

    def _read(self, folder: Path, seen: list[Any], before: Entry | None, late: bool) -> Entry:
        """Read new events of an open run; otherwise the cached digest or, last, all events."""
        is_open = before is not None and before.open is not None
        if not is_open and (kept := read_digest(folder, seen)) is not None:
            return Entry(seen, kept)
        if late and not is_open:
            raise DeadlineError
        name = folder.name
        opened = self._opened.get(name)  # the same one, unless another run has its name now
        try:
            with opened.current() as run:
                line = write_digest(run)
        except Exception as error:  # one damaged folder must not hide other runs
            self._broken[name] = seen
            logger.warning("Run %s cannot be read", name, exc_info=True)
            raise NoSuchRunError(f"Run {name} cannot be read: {error}") from error
        return Entry(seen, line, None if line.status.over else opened)

    def _forget(self, names: list[str]) -> None:
        """Drop removed runs, and the oldest beyond the limit."""
        kept = set(names[:MAX_CACHED])
        self._entries = {name: entry for name, entry in self._entries.items() if name in kept}
        self._broken = {name: seen for name, seen in self._broken.items() if name in kept}


class KernelLiveness:
    """Checks which kernels are alive, once for each kernel."""

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._alive: dict[tuple[int, float], bool] = {}

    def alive(self, kernel: KernelStatus) -> bool:
        """Return whether the process of ``kernel`` is alive now."""
        process = kernel.pid, kernel.create_time
        if process not in self._alive:
            self._alive[process] = process_is_alive(*process)
        return self._alive[process]
