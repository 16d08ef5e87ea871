"""Sends the bundle to a node that does not see it, by a connection of its own.

Ray's arguments are copied into its object store, between nodes, and out of it, a part at a time;
this takes twice as long as the network.  Both sides prove that they know a key that came through
Ray, as ranks at the store do; what is sent is neither encrypted nor signed, like all that ranks
exchange.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import threading
from contextlib import suppress

from nbmgpu.serialization import container

from .folder_on_node import RECEIVED, SIZE
from .node_actor import CHALLENGE, FROM_HEAD, FROM_NODE

POLL = 0.002
"""Seconds between two looks at whether the bundle is complete."""

ANSWER_TIMEOUT = 10.0
"""Seconds for a node to answer the challenge."""


class BundleSender:
    """Listens for one node, and sends it the bundle once it is complete.

    Attributes:
        port: where it listens, on all interfaces.
        key: what the node must know.
        error: why it cannot be sent; usually empty.
    """

    def __init__(self, bundle: str) -> None:
        """Listen; ``bundle`` is the path of a file that may not be complete yet."""
        self.error = ""
        self.key = secrets.token_bytes(CHALLENGE)
        self._bundle = bundle
        self._is_closed = threading.Event()
        self._listener = socket.create_server(("", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._accept() as connection:
                self._send(connection)
        except OSError as error:
            if not self._is_closed.is_set():
                self.error = str(error)
        finally:
            self._listener.close()

    def _accept(self) -> socket.socket:
        """Return a connection to the node, which has proved that it knows the key."""
        while True:
            connection, _ = self._listener.accept()
            with suppress(OSError):
                if self._is_node(connection):
                    return connection
            connection.close()

    def _is_node(self, connection: socket.socket) -> bool:
        connection.settimeout(ANSWER_TIMEOUT)
        challenge = secrets.token_bytes(CHALLENGE)
        connection.sendall(challenge)
        reply = connection.recv(2 * CHALLENGE, socket.MSG_WAITALL)
        expected = hmac.digest(self.key, FROM_NODE + challenge, "sha256")
        if not hmac.compare_digest(reply[CHALLENGE:], expected):
            return False
        connection.sendall(hmac.digest(self.key, FROM_HEAD + reply[:CHALLENGE], "sha256"))
        connection.settimeout(None)
        return True

    def _send(self, connection: socket.socket) -> None:
        while not container.is_complete(self._bundle):
            if self._is_closed.wait(POLL):
                return
        with open(self._bundle, "rb") as file:
            connection.sendall(os.fstat(file.fileno()).st_size.to_bytes(SIZE, "little"))
            connection.sendfile(file)
        if connection.recv(1) != RECEIVED:
            raise OSError("the node has not received all of the notebook's data")

    def wait(self) -> None:
        """Wait until the node has the bundle, or cannot get it."""
        self._thread.join()

    def close(self) -> None:
        """Stop to listen and to send."""
        self._is_closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
