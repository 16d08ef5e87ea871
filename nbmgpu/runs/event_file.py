"""The file of one process's events: one line of JSON each."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from .event_lines import decode_lines, encode
from .event_types import HIGH_VOLUME, NOT_AWAITING_SPACE
from .events import E, Event, Notice
from .merged_events import EventMerger, merge, read_merged
from .preallocation import DISK_FULL, ReservedSpace

FULL_DISK = (
    "Nothing more can be written to the folder of runs: {error}. Metrics and output are missing "
    "from here on; the cell goes on, and its results come back. Free some space, or set "
    "NBMGPU_RUNS to another folder for the next run."
)


class EventWriter:
    """Appends the events of one process to its file, with one ``write`` call per event.

    A full disk ends neither a launcher, and with it the ranks, nor a cell that has trained for
    hours.  Frequent events are dropped, with a notice.  Rare ones use space that was reserved;
    where none can be, as under a quota of btrfs, they wait until they fit.
    """

    def __init__(self, path: Path, rank: int) -> None:
        """Open ``path`` for appending; ``rank`` is stamped on every event."""
        self.path = path
        self.rank = rank
        self._file = path.open("ab", buffering=0)
        is_new = not os.fstat(self._file.fileno()).st_size
        self._merger = EventMerger(path) if is_new else None
        self._reserve = ReservedSpace(self._file.fileno())
        self._waiting = b""
        self._has_reported = False

    def emit(self, cls: type[E], **fields: Any) -> E:
        """Write an event of type ``cls`` with the current time; return it.

        Raises:
            OSError: the disk is full, and the event is one of ``NOT_AWAITING_SPACE``; nothing of it
                was written.
        """
        event = cls(time=time.time(), rank=self.rank, **fields)
        line = encode(event).encode() + b"\n"
        try:
            if cls in HIGH_VOLUME:
                self._reserve.ensure(len(line))
            self._append(line)
            self._merge(event, len(line))
        except OSError as error:
            self._merger = None  # what waits is written without it
            if cls in NOT_AWAITING_SPACE or error.errno not in DISK_FULL:
                raise
            if cls in HIGH_VOLUME:
                self.report_full_disk(error)
            else:
                self._waiting += line
        return event

    def _merge(self, event: Event, nbytes: int) -> None:
        try:
            if self._merger is not None:
                self._merger.add(event, nbytes)
        except OSError:  # on a full disk, readers take longer
            self._merger = None

    def report_full_disk(self, error: OSError) -> None:
        """Emit a notice, once, that what is written from now on is missing."""
        if not self._has_reported:
            self._has_reported = True
            self.emit(Notice, topic="full-disk", text=FULL_DISK.format(error=error.strerror))

    def _append(self, line: bytes) -> None:
        """Write all lines that wait and ``line``, or nothing.

        Raises:
            OSError: they do not fit.
        """
        waiting, self._waiting = self._waiting, b""
        lines = waiting + line
        try:
            written = self._file.write(lines)
            if written < len(lines):
                self._file.truncate(self._file.seek(0, os.SEEK_END) - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._waiting = waiting + self._waiting
            raise

    def close(self, merge: bool = False) -> bool:
        """Close the file; later events raise ValueError.

        Args:
            merge: whether to merge the last events, too, so that readers of many files read less.

        Returns:
            Whether all events were written: those that do not fit on a full disk are lost.
        """
        if not self._file.closed:
            with suppress(OSError):
                self._append(b"")
            if merge and self._merger is not None:
                with suppress(OSError):
                    self._merger.merge_rest()
            self._reserve.release()
        self._file.close()
        return not self._waiting


class EventTail:
    """Reads what was appended to an event file since the last read."""

    def __init__(self, path: Path, is_one_of_many: bool = False) -> None:
        """Follow ``path``, which need not exist yet.

        Args:
            path: the file.
            is_one_of_many: whether to merge what is there at first: views of many ranks take
                longer for it than the merging.
        """
        self.path = path
        self._merges = is_one_of_many
        self._offset = -1
        self._rest = b""

    def read(self) -> list[Event]:
        """Return new complete events, oldest first; at first, fewer of those that are long past."""
        if self._offset >= 0:
            return self._read_new()
        merged, self._offset = read_merged(self.path)
        new = self._read_new()
        return merged + (merge(new) if self._merges else new)

    def _read_new(self) -> list[Event]:
        try:
            if self.path.stat().st_size <= self._offset:  # the common case
                return []
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return decode_lines(lines)
