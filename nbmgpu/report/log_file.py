"""One log file: the offsets of its lines, their text, and search.

The file is append-only. Line offsets are kept, so that any page of a hundred thousand lines takes
a few short reads.
"""

from __future__ import annotations

import re
from array import array
from pathlib import Path
from typing import BinaryIO

import numpy as np

LINE_BYTES = 4000
"""Bytes of a line that are shown; longer lines are truncated."""

CHUNK = 1 << 22
"""Bytes per read."""

SEARCHES = 8
"""Searches whose results are cached."""


class LogFile:
    """One log file, as far as it was read."""

    def __init__(self, path: Path) -> None:
        """Open ``path``, which need not exist yet."""
        self._path = path
        self._starts = array("Q", [0])
        self._found: dict[str, SearchResult] = {}
        self.size = 0

    @property
    def lines(self) -> int:
        """Number of lines, including an unfinished one."""
        return len(self._starts) - (self._starts[-1] == self.size)

    def start(self, number: int) -> int:
        """Return the offset of a line."""
        return int(self._starts[number])

    def ends(self) -> np.ndarray:
        """Return the offset of each line's end."""
        starts = np.array(self._starts, np.int64)
        return np.append(starts[1:], self.size)[: self.lines]

    def update(self) -> None:
        """Read what was appended to the file."""
        try:
            if self._path.stat().st_size <= self.size:
                return
            with self._path.open("rb") as file:
                file.seek(self.size)
                while data := file.read(CHUNK):
                    breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
                    self._starts.frombytes((breaks + self.size + 1).astype(np.uint64).tobytes())
                    self.size += len(data)
        except FileNotFoundError:
            return

    def read(self, numbers: np.ndarray) -> list[str]:
        """Return the text of lines without newlines; very long lines are truncated."""
        if not len(numbers):
            return []
        with self._path.open("rb") as file:
            return [self._text(file, number) for number in numbers.tolist()]

    def _text(self, file: BinaryIO, number: int) -> str:
        start = self._starts[number]
        end = self._starts[number + 1] if number + 1 < len(self._starts) else self.size
        file.seek(start)
        data = file.read(min(end - start, LINE_BYTES))
        left = end - start - len(data)
        if left > 0:
            file.seek(end - LINE_BYTES)
            tail = file.read(LINE_BYTES)
            if b"\r" in tail.rstrip(b"\r\n"):  # a progress bar that is redrawn: its last state
                data = tail.rpartition(b"\r")[2] if not tail.endswith(b"\r") else tail
            else:
                data += f" … {left:,} bytes more".encode()
        return data.rstrip(b"\n").decode("utf-8", "replace")

    def contains(self, search: str) -> np.ndarray:
        """Tell for each line whether it contains ``search``."""
        if search not in self._found and len(self._found) >= SEARCHES:
            self._found.pop(next(iter(self._found)))
        found = self._found.setdefault(search, SearchResult(search))
        flags = np.zeros(self.lines, bool)
        if self.size:
            flags[found.update(self._path, self._starts, self.size)] = True
        return flags


class SearchResult:
    """The lines of one file that contain a text, as far as it was searched."""

    def __init__(self, search: str) -> None:
        """Search for a text, ignoring the case of ASCII letters."""
        wanted = search.encode("utf-8", "replace")
        self._pattern = re.compile(re.escape(wanted), re.IGNORECASE)
        self._overlap = max(len(wanted) - 1, 0)
        self._lines = array("Q")
        self._searched = 0

    def update(self, path: Path, starts: array[int], size: int) -> np.ndarray:
        """Continue to ``size``, in chunks; return the numbers of all matching lines."""
        if self._searched < size:
            lines = np.array(starts, np.int64)
            with path.open("rb") as file:
                while self._searched < size:
                    begin = max(0, self._searched - self._overlap)  # a match may span two chunks
                    end = min(self._searched + CHUNK, size)
                    file.seek(begin)
                    data = file.read(end - begin)
                    places = [begin + match.start() for match in self._pattern.finditer(data)]
                    found = np.unique(np.searchsorted(lines, places, "right") - 1)
                    known = self._lines[-1] if self._lines else -1
                    self._lines.extend(found[found > known].tolist())
                    self._searched = end
        return np.array(self._lines, np.int64)
