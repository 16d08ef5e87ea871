"""Numbers that the ranks of one machine publish in shared memory, all in the same order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from nbmgpu.errors import RankError, format_message
from nbmgpu.system.shared_memory import STREAM_LENGTH, SharedMemory

from .signals import RankSignals

BITS = 48
"""Bits of a published number; 15 more bits of an entry are of its position in the stream.

So one write publishes both, and a reader knows to which turn of the ring an entry belongs.
"""

LARGEST = (1 << BITS) - 2
"""The largest number; the smallest is 0."""

END = LARGEST + 1
"""What a rank publishes when it has finished the cell."""

MASK = (1 << BITS) - 1

TURNS = 1 << 15


@dataclass(frozen=True)
class Difference:
    """The first position of a stream at which ranks differ.

    Attributes:
        position: in the stream.
        own: the number of this rank.
        others: those of other ranks, as far as they have arrived.
    """

    position: int
    own: int
    others: list[int]


class NumberStream:
    """A stream of integers per rank, of which the newest are kept in a ring.

    Publishing waits for no other rank, unless one is ``STREAM_LENGTH`` numbers behind.

    Attributes:
        position: of the number that this rank has published last; 0 for none.
    """

    def __init__(self, shared_memory: SharedMemory, signals: RankSignals, index: int) -> None:
        """Publish in the stream ``index`` of ``shared_memory``."""
        self.position = 0
        self._signals = signals
        streams = [shared_memory.stream(index, rank) for rank in range(shared_memory.world_size)]
        self._own = streams[signals.rank]
        self._others = [(rank, streams[rank]) for rank in signals.others]
        self._compared = 0
        self._read_by_all = 0
        self._broken = self._has_ended = False

    def publish(self, number: int) -> None:
        """Publish ``number``.

        Raises:
            RankError: this is a child process, the rank was interrupted here before, or one that
                is ``STREAM_LENGTH`` numbers behind has finished the cell.
        """
        self._signals.check_process()
        if self._broken:
            what = f"Rank {self._signals.rank} was interrupted while it told others of a call"
            raise RankError(format_message(what, "Its state is unknown", "the cell again"))
        self._broken = True
        self._make_room()
        self.position += 1
        self._own[_index(self.position)] = self.position % TURNS << BITS | number
        self._has_ended = number == END
        self._broken = False
        self._signals.wake_others()

    def gather(self, position: int) -> list[int]:
        """Return what the other ranks have published at ``position``; wait for it.

        Nothing before ``position`` can be read any more.

        Raises:
            RankError: a rank has finished the cell without publishing so many.
        """
        self.wait(position)
        numbers = [stream[_index(position)] & MASK for _, stream in self._others]
        self._set_read(position)
        return numbers

    def wait(self, position: int) -> None:
        """Wait until all ranks have published the number at ``position``.

        Raises:
            RankError: a rank has finished the cell without publishing so many.
        """
        for rank, stream in self._others:
            self._signals.wait_for(rank, partial(_has_published, stream, position))

    def check(self, number: int, wait: bool = False) -> Difference | None:
        """Publish ``number`` and ``compare``; with ``wait``, when all ranks have published it.

        ``END`` is published once.

        Raises:
            RankError: as ``publish`` and ``wait`` do.
        """
        if not (self._has_ended and number == END):
            if self._compared <= self.position - STREAM_LENGTH:
                self._make_room()  # the number overwrites one that is not compared yet
                if (difference := self.compare()) is not None:
                    return difference
            self.publish(number)
        if wait:
            self.wait(self.position)
        return self.compare()

    def compare(self) -> Difference | None:
        """Compare what has been published; return the first difference, None if there is none.

        The rank that publishes a number last compares it with those of all others.
        """
        before = self._compared
        while self._compared < self.position:
            position = self._compared + 1
            index = _index(position)
            own = self._own[index]
            entries = [stream[index] for _, stream in self._others]
            if any(entry != own for entry in entries):
                arrived = [e for e in entries if e >> BITS == own >> BITS]
                if any(entry != own for entry in arrived):
                    return Difference(position, own & MASK, [e & MASK for e in arrived])
                break  # the others compare this number later
            self._compared = position
        if self._compared > before:
            self._set_read(self._compared)
        return None

    def clear(self) -> None:
        """Begin anew, while no rank publishes or reads."""
        for index in range(len(self._own)):
            self._own[index] = 0
        self.position = self._compared = self._read_by_all = 0
        self._broken = self._has_ended = False

    def _make_room(self) -> None:
        """Wait until the others have read what the next number overwrites."""
        needed = self.position + 1 - STREAM_LENGTH
        if self._read_by_all < needed:
            for rank, stream in self._others:
                self._signals.wait_for(rank, partial(_has_read, stream, needed))
            self._read_by_all = min(stream[0] for _, stream in self._others)

    def _set_read(self, position: int) -> None:
        self._own[0] = position
        self._signals.wake_others()  # one may wait for room


def _index(position: int) -> int:
    return 1 + position % STREAM_LENGTH


def _has_published(stream: memoryview[int], position: int) -> bool:
    return stream[_index(position)] >> BITS == position % TURNS


def _has_read(stream: memoryview[int], position: int) -> bool:
    return stream[0] >= position
