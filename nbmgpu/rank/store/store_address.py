"""Where the store server of a run listens, and how a rank connects to it.

A server on this machine has a Unix domain socket in a folder that only its owner can enter.  One
that serves several machines listens on a TCP port, and each connection has to prove that it knows
the key of the run: by an HMAC of random bytes that the server has sent (RFC 2104), so that nobody
who listens on the network learns the key or can connect with what he has heard.
"""

from __future__ import annotations

import hmac
import os
import socket
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from .messages import encode, receive

UNIX, TCP = "unix", "nbmgpu"
"""The schemes of ``init_method``."""

KEY_VARIABLE = "NBMGPU_STORE_KEY"
"""Environment variable with the key, in hexadecimal digits.  Only processes of the same user can
read it; a command line is visible to all."""

CONNECT_TIMEOUT = 30.0
"""Seconds to wait for a server on another machine."""


@dataclass(frozen=True)
class StoreAddress:
    """The address of a store server.

    Attributes:
        path: of the Unix domain socket; ``@name`` is one of Linux without a file.  Empty for TCP.
        host, port: of a server that listens on TCP.
    """

    path: str = ""
    host: str = ""
    port: int = 0

    def init_method(self) -> str:
        """Return the address for ``init_process_group``."""
        if self.path:
            return f"{UNIX}:///{quote(self.path, safe='')}"
        return f"{TCP}://{self.host}:{self.port}"

    @classmethod
    def parse(cls, init_method: str) -> StoreAddress:
        """Return the address that ``init_method`` has returned."""
        parts = urlsplit(init_method)
        if parts.scheme == UNIX:
            return cls(unquote(parts.path[1:]))
        return cls(host=parts.hostname or "", port=parts.port or 0)

    def __str__(self) -> str:
        """Return it for messages."""
        return self.path or f"{self.host}:{self.port}"

    def socket_address(self) -> str | tuple[str, int]:
        """Return what ``socket.connect`` and ``socket.bind`` take."""
        if not self.path:
            return self.host, self.port
        return f"\0{self.path[1:]}" if self.path.startswith("@") else self.path


class Connection(socket.socket):
    """A connection that ends with its thread, or in a forked process with its first request."""

    def __init__(self, address: StoreAddress) -> None:
        """Connect to the server at ``address``.

        Raises:
            OSError: there is no server, or it does not accept the key.
        """
        super().__init__(socket.AF_UNIX if address.path else socket.AF_INET)
        self.process = os.getpid()
        try:
            if not address.path:
                self.settimeout(CONNECT_TIMEOUT)
            self.connect(address.socket_address())
            if not address.path:
                self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._authenticate()
        except OSError:
            self.close()
            raise

    def _authenticate(self) -> None:
        (challenge,) = receive(self)
        self.sendall(encode([answer(store_key(), challenge)]))

    def __del__(self) -> None:
        """Close it."""
        self.close()


def answer(key: bytes, challenge: bytes) -> bytes:
    """Return what proves that its sender knows ``key``."""
    return hmac.digest(key, challenge, "sha256")


_key = b""


def store_key() -> bytes:
    """Return the key of the run; the cell and its children do not see the variable."""
    global _key
    if given := os.environ.pop(KEY_VARIABLE, ""):
        _key = bytes.fromhex(given)
    return _key
