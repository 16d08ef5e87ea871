"""A client of the store server, without torch."""

from __future__ import annotations

import os
import threading

from .messages import encode, receive
from .store_address import Connection, StoreAddress

Value = bytes | str


class StoreClient:
    """Sends requests to a store server.

    Each thread has a connection of its own, so a thread that waits for a key holds up no other.
    """

    def __init__(self, address: StoreAddress) -> None:
        """Connect to the server at ``address`` with the first request."""
        self.address = address
        self._local = threading.local()

    def call(self, operation: str, *arguments: Value, timeout: float | None = None) -> list[bytes]:
        """Send a request; return the response.

        An interrupt may raise an exception at any point.  The connection is then closed, as the
        next response on it would be that of this request.

        Args:
            operation: see ``nbmgpu.engines.store_server``.
            arguments: of the operation.
            timeout: seconds to wait for the response; None for no limit.

        Raises:
            TimeoutError: there was no response in time.
            OSError: there is no server.
        """
        parts = [part.encode() if isinstance(part, str) else bytes(part) for part in arguments]
        connection = self._connection()
        try:
            connection.settimeout(timeout)
            connection.sendall(encode([operation.encode(), *parts]))
            return receive(connection)
        except BaseException:
            self._disconnect()
            raise

    def append(self, key: str, value: Value) -> None:
        """Append ``value`` to that of ``key``, which is empty if it is not set."""
        self.call("append", key, value)

    def get(self, key: str) -> str:
        """Return the value of ``key`` when it is set."""
        return self.call("get", key)[0].decode()

    def _connection(self) -> Connection:
        """Return this thread's connection; a forked process has its own."""
        known: Connection | None = getattr(self._local, "connection", None)
        if known is None or known.process != os.getpid():
            self._local.connection = known = Connection(self.address)
        return known

    def _disconnect(self) -> None:
        self._local.connection.close()
        self._local.connection = None
