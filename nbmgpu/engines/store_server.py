"""Serves the store of a run's process group to the ranks of this run alone.

On one machine it listens on a Unix domain socket, and serves this user.  For several machines it
listens on a TCP port, and serves who knows the key of the run.
"""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nbmgpu.rank.store.messages import Decoder, encode
from nbmgpu.rank.store.store_address import StoreAddress, answer

SOCKET = "store"
"""Name of the socket in its folder."""

BACKLOG = 1024
"""Connections that may wait until the server accepts them: each thread of each rank has one."""

CREDENTIALS = struct.Struct("iII")
"""What Linux knows about the process at the other end: its pid, uid and gid."""

MOST_UNPROVEN = 256
"""Bytes that are read from a connection before it has proven that it knows the key."""

SET, UNSET = b"1", b"0"


@dataclass(eq=False)
class Client:
    """A connection.

    Attributes:
        connection: of a rank's thread.
        waits_for: keys that are to be set before the pending request is answered.
        answers: whether the answer to that request has the values of the keys.
        expected: what it must send first; empty once it has, and if there is no key.
        at_close: key and value to append when it ends, however its process does.
    """

    connection: socket.socket
    waits_for: list[bytes] = field(default_factory=list)
    answers: bool = False
    expected: bytes = b""
    at_close: tuple[bytes, bytes] | None = None
    decoder: Decoder = field(default_factory=Decoder)


class StoreServer:
    """The keys of one run, and the connections of its ranks."""

    def __init__(self, listener: socket.socket, address: StoreAddress, key: bytes = b"") -> None:
        """Listen; ranks may connect from now on.

        Args:
            listener: a socket that is bound to ``address``.
            address: where ranks connect.
            key: what they must know; empty if they are known by their user.
        """
        self.address = address
        self._key = key
        self._listener = listener
        self._listener.listen(BACKLOG)
        self._selector = selectors.DefaultSelector()
        self._keys: dict[bytes, bytes] = {}
        self._waiting: dict[bytes, list[Client]] = {}

    @classmethod
    def on_unix_socket(cls, folder: str) -> StoreServer:
        """Return a server for ranks on this machine.

        Args:
            folder: where to make the socket, which only this user can enter.  If it is empty, as
                on a full disk, the socket has no file; only the user is checked then.

        Raises:
            OSError: the socket cannot be made.
        """
        path = str(Path(folder) / SOCKET) if folder else f"@nbmgpu-{secrets.token_hex(16)}"
        listener, address = socket.socket(socket.AF_UNIX), StoreAddress(path)
        listener.bind(address.socket_address())
        return cls(listener, address)

    @classmethod
    def on_port(cls, host: str, key: bytes, port: int = 0) -> StoreServer:
        """Return a server for ranks on several machines.

        Args:
            host: of the interface to listen on; empty for all of them.
            key: what ranks must know.
            port: 0 for one that is free.

        Raises:
            OSError: the machine has no such interface, or the port is in use.
        """
        listener = socket.socket(socket.AF_INET)
        listener.bind((host, port))
        return cls(listener, StoreAddress(host=host, port=listener.getsockname()[1]), key)

    def start(self) -> None:
        """Serve in a thread, until the process ends."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        threading.Thread(target=self._serve, name="nbmgpu-store", daemon=True).start()

    def _serve(self) -> None:
        while True:
            for ready, _ in self._selector.select():
                if ready.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(ready.data)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # too many open files, or the client is gone
            return
        client = Client(connection)
        if self._key:
            challenge = secrets.token_bytes(32)
            client.expected = answer(self._key, challenge)
            with suppress(OSError):  # its end is read next
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                notice_lost_peers(connection)
                connection.sendall(encode([challenge]))
        elif peer_user(connection) not in (os.geteuid(), None):
            connection.close()
            return
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _read(self, client: Client) -> None:
        try:
            data = client.connection.recv(MOST_UNPROVEN if client.expected else 1 << 16)
            for message in client.decoder.feed(data):
                self._handle(client, message)
            if client.expected and len(client.decoder) > MOST_UNPROVEN:
                raise ValueError("not an answer to the challenge")
        except (OSError, LookupError, TypeError, ValueError):  # gone, or not a request
            data = b""
        if not data:
            self._forget(client)
            self._selector.unregister(client.connection)
            client.connection.close()
            if client.at_close is not None:
                self._append(*client.at_close)

    def _handle(self, client: Client, message: list[bytes]) -> None:
        if client.expected:
            if not hmac.compare_digest(b"".join(message), client.expected):
                raise ValueError("another key")
            client.expected = b""
            return
        operation, *arguments = message
        if operation == b"at_close":
            key, value = arguments
            client.at_close = key, value
            client.connection.sendall(encode([]))
            return
        if operation in (b"get", b"wait"):
            client.waits_for, client.answers = arguments, operation == b"get"
            if not self._answer(client):
                for key in client.waits_for:
                    self._waiting.setdefault(key, []).append(client)
            return
        client.connection.sendall(encode(OPERATIONS[operation](self, *arguments)))

    def _answer(self, client: Client) -> bool:
        """Answer a request that waits for keys, if all of them are set."""
        if not all(key in self._keys for key in client.waits_for):
            return False
        values = [self._keys[key] for key in client.waits_for] if client.answers else []
        self._forget(client)
        with suppress(OSError):  # its end is read next
            client.connection.sendall(encode(values))
        return True

    def _forget(self, client: Client) -> None:
        """Let a client wait for nothing."""
        for key in client.waits_for:
            waiting = self._waiting.get(key, [])
            if client in waiting:
                waiting.remove(client)
            if not waiting:
                self._waiting.pop(key, None)
        client.waits_for = []

    def _set(self, key: bytes, value: bytes) -> list[bytes]:
        self._keys[key] = value
        for client in list(self._waiting.get(key, ())):
            self._answer(client)
        return []

    def _append(self, key: bytes, value: bytes) -> list[bytes]:
        return self._set(key, self._keys.get(key, b"") + value)

    def _add(self, key: bytes, number: bytes) -> list[bytes]:
        total = b"%d" % (int(self._keys.get(key, b"0")) + int(number))
        self._set(key, total)
        return [total]

    def _compare_set(self, key: bytes, expected: bytes, desired: bytes) -> list[bytes]:
        found = self._keys.get(key)
        if found == expected or (found is None and not expected):
            self._set(key, desired)
            return [desired]
        return [expected if found is None else found]

    def _check(self, *keys: bytes) -> list[bytes]:
        return [SET if all(key in self._keys for key in keys) else UNSET]

    def _delete(self, key: bytes) -> list[bytes]:
        return [UNSET if self._keys.pop(key, None) is None else SET]

    def _list(self) -> list[bytes]:
        return list(self._keys)


OPERATIONS: dict[bytes, Callable[..., list[bytes]]] = {
    b"set": StoreServer._set,
    b"append": StoreServer._append,
    b"add": StoreServer._add,
    b"compare_set": StoreServer._compare_set,
    b"check": StoreServer._check,
    b"delete": StoreServer._delete,
    b"list": StoreServer._list,
}
"""What is answered at once."""


def notice_lost_peers(connection: socket.socket) -> None:
    """End a connection when the other machine has not answered for 40 seconds."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def peer_user(connection: socket.socket) -> int | None:
    """Return the id of the user at the other end; None where the system does not report it."""
    if not hasattr(socket, "SO_PEERCRED"):  # macOS: the folder's mode alone protects the socket
        return None
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(found)[1])
