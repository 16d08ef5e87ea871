"""The file of one process's events: one line of JSON each."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

from .event_lines import decode, encode
from .events import HIGH_VOLUME, E, Event
from .preallocation import ReservedSpace


class EventWriter:
    """Appends the events of one process to its file, with one ``write`` call per event."""

    def __init__(self, path: Path, rank: int) -> None:
        """Open ``path`` for appending; ``rank`` is stamped on every event."""
        self.path = path
        self.rank = rank
        self._file = path.open("ab", buffering=0)
        self._reserve = ReservedSpace(self._file.fileno())

    def emit(self, cls: type[E], **fields: Any) -> E:
        """Write an event of type ``cls`` with the current time; return it.

        Raises:
            OSError: the disk is full; nothing of the event was written.
        """
        event = cls(time=time.time(), rank=self.rank, **fields)
        line = encode(event).encode() + b"\n"
        if cls in HIGH_VOLUME:
            self._reserve.ensure(len(line))
        written = self._file.write(line)
        if written < len(line):
            self._file.truncate(self._file.seek(0, os.SEEK_END) - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return event

    def close(self) -> None:
        """Close the file; later events raise ValueError."""
        if not self._file.closed:
            self._reserve.release()
        self._file.close()


class EventTail:
    """Reads what was appended to an event file since the last read."""

    def __init__(self, path: Path) -> None:
        """Follow ``path``, which need not exist yet."""
        self.path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> list[Event]:
        """Return new complete events, oldest first."""
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
        return [event for line in lines if (event := decode(line)) is not None]
