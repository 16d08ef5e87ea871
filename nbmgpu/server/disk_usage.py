"""Measures what the folders of all runs take on the disk."""

from __future__ import annotations

import threading
import time

from nbmgpu.runs.folder_size import FolderSize, measure

from .payloads import DiskUsage
from .run_folders import NoSuchRunError, run_folder, run_ids

CACHE_SECONDS = 1.0
"""Seconds for which a measurement is reused for other clients."""


class DiskUsageReader:
    """Adds up the sizes of all runs; measures those again that have changed. Thread-safe."""

    def __init__(self) -> None:
        """Start without any size."""
        self._lock = threading.Lock()
        self._sizes: dict[str, FolderSize] = {}
        self._read_at = -CACHE_SECONDS
        self._usage = DiskUsage(0, 0)

    def read(self) -> DiskUsage:
        """Return what all runs take on the disk, at most a second old.

        Raises:
            OSError: The folder of all runs cannot be read.
        """
        with self._lock:
            if time.monotonic() - self._read_at >= CACHE_SECONDS:
                self._usage = self._measure()
                self._read_at = time.monotonic()
            return self._usage

    def _measure(self) -> DiskUsage:
        try:
            names = run_ids()
        except FileNotFoundError:
            names = []  # the first run creates it
        found: dict[str, FolderSize] = {}
        for name in names:
            try:
                folder = run_folder(name)
            except NoSuchRunError:
                continue  # being created or deleted, damaged, or of another user
            known = self._sizes.get(name)
            found[name] = known if known and known.is_current() else measure(folder)
        self._sizes = found
        return DiskUsage(len(found), sum(each.nbytes for each in found.values()))
