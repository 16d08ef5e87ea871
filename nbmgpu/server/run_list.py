"""The list of runs.  Lines of runs that are over are made once and remembered."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbmgpu.report.digest import fingerprint, read_digest, write_digest
from nbmgpu.report.run_line import RunLine
from nbmgpu.runs.run import Run
from nbmgpu.system.processes import process_is_alive

from .payloads import RunList
from .run_folders import NoSuchRunError, open_run, run_folder, run_ids

logger = logging.getLogger(__name__)

NEWEST = 200
"""How many runs a list has unless more are asked for."""

MOST = 500
"""The most runs of one list."""

PATIENCE = 0.2
"""Seconds after which runs that nobody has read yet are left for the next time somebody asks."""

KEPT = 2000
"""Runs whose lines are remembered; a line takes some kilobytes."""


@dataclass(frozen=True)
class Entry:
    """What is remembered of a run; it is kept open while it goes on, and no longer."""

    seen: list[Any]
    line: RunLine
    open: Run | None = None


class LateError(Exception):
    """It has taken long enough, and here is a run of which all would have to be read."""


class RunLines:
    """Makes the lines of runs and remembers them.  Threads may share it."""

    def __init__(self) -> None:
        """Know no run yet."""
        self._entries: dict[str, Entry] = {}
        self._broken: dict[str, list[Any]] = {}
        self._lock = threading.Lock()

    def newest(self, limit: int = NEWEST, before: str = "") -> RunList:
        """Return the newest ``limit`` runs, or those whose names sort before ``before``.

        There may be fewer, and more to be had, where much has to be read for the first time.

        Raises:
            OSError: the folder of all runs cannot be read.
        """
        limit, deadline = max(0, min(limit, MOST)), time.monotonic() + PATIENCE
        with self._lock:
            try:
                names = run_ids()
            except FileNotFoundError:
                names = []  # it comes with the first run
            self._forget(names)
            kernels = Kernels()
            lines: list[RunLine] = []
            for name in names:
                if before and name >= before:
                    continue
                if len(lines) == limit:
                    return RunList(lines, more=True)
                late = bool(lines) and time.monotonic() > deadline
                try:
                    lines.append(self._line(name, kernels, late))
                except LateError:
                    return RunList(lines, more=True)
                except (NoSuchRunError, OSError):
                    continue  # half made, half deleted, damaged, or not for this user
            return RunList(lines, more=False)

    def _line(self, name: str, kernels: Kernels, late: bool) -> RunLine:
        folder = run_folder(name)
        entry, seen = self._entries.get(name), fingerprint(folder)
        if self._broken.get(name) == seen:
            raise NoSuchRunError(f"Run {name} could not be read before")
        if entry is None or entry.open or entry.seen != seen:
            entry = self._entries[name] = self._look(folder, seen, entry, late)
        if entry.line.kernel_alive != (alive := kernels.alive(entry.line)):
            line = dataclasses.replace(entry.line, kernel_alive=alive)
            entry = self._entries[name] = dataclasses.replace(entry, line=line)
        return entry.line

    def _look(self, folder: Path, seen: list[Any], before: Entry | None, late: bool) -> Entry:
        """Read what is new of a run that is open, or else its digest, or else all of it."""
        run = before.open if before else None
        if run is None and (kept := read_digest(folder, seen)) is not None:
            return Entry(seen, kept)
        if run is None and late:
            raise LateError
        name = folder.name
        run = run or open_run(name)
        try:
            line = write_digest(run)
            run.poll()  # nobody else wants this reader's events
        except Exception as error:  # one damaged folder must not hide the others
            self._broken[name] = seen
            logger.warning("Run %s cannot be read", name, exc_info=True)
            raise NoSuchRunError(f"Run {name} cannot be read: {error}") from error
        return Entry(seen, line, None if line.over else run)

    def _forget(self, names: list[str]) -> None:
        """Drop runs that are gone, and the oldest beyond the limit."""
        kept = set(names[:KEPT])
        self._entries = {name: entry for name, entry in self._entries.items() if name in kept}
        self._broken = {name: seen for name, seen in self._broken.items() if name in kept}


class Kernels:
    """Which kernels live at this moment; each is looked at once."""

    def __init__(self) -> None:
        """Know none yet."""
        self._alive: dict[tuple[int, float], bool] = {}

    def alive(self, line: RunLine) -> bool:
        """Tell whether the kernel that started the run still runs."""
        process = line.kernel_pid, line.kernel_create_time
        if process not in self._alive:
            self._alive[process] = process_is_alive(*process)
        return self._alive[process]
