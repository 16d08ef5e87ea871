"""Messages between ranks and the store server: lists of byte strings with their lengths before.

Each request is a list whose first part is the name of the operation; each response is a list.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence

COUNT = struct.Struct("<I")
LENGTH = struct.Struct("<Q")


def encode(parts: Sequence[bytes]) -> bytes:
    """Return ``parts`` as one message."""
    lengths = b"".join(LENGTH.pack(len(part)) for part in parts)
    return b"".join([COUNT.pack(len(parts)), lengths, *parts])


class Decoder:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        """Start with an empty stream."""
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[list[bytes]]:
        """Add ``data``; yield each message that is complete."""
        self._data += data
        while (message := self._next()) is not None:
            yield message

    def __len__(self) -> int:
        """Return the number of bytes of a message that is not complete yet."""
        return len(self._data)

    def _next(self) -> list[bytes] | None:
        if len(self._data) < COUNT.size:
            return None
        (count,) = COUNT.unpack_from(self._data)
        at = COUNT.size + count * LENGTH.size
        if len(self._data) < at:
            return None
        lengths = struct.unpack_from(f"<{count}Q", self._data, COUNT.size)
        if len(self._data) < at + sum(lengths):
            return None
        parts = []
        for length in lengths:
            parts.append(bytes(self._data[at : at + length]))
            at += length
        del self._data[:at]
        return parts


def receive(connection: socket.socket) -> list[bytes]:
    """Wait for one message, which is the only one that is on its way.

    Raises:
        ConnectionError: the other side has closed the connection.
        TimeoutError: the timeout of the socket has passed.
    """
    decoder = Decoder()
    while data := connection.recv(1 << 16):
        for message in decoder.feed(data):
            return message
    raise ConnectionError("the store server has ended")
