"""The store of a process group that serves this run alone.

Torch's ``TCPStore`` serves every user of the machine: any of them may read, change and delete its
keys.  The server of this store (``nbmgpu.engines.store_server``) checks who connects: the user at
the other end of a Unix domain socket, or over TCP that he knows the key of the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch.distributed as dist
from torch.distributed.rendezvous import register_rendezvous_handler

from .store_address import TCP, UNIX, StoreAddress
from .store_client import StoreClient, Value

_stores: list[RunStore] = []
"""All stores of this process: torch keeps their C++ half alone, which calls methods of this one."""


def register() -> None:
    """Let ``torch.distributed.init_process_group`` accept the addresses of such stores."""
    for scheme in (UNIX, TCP):
        with contextlib.suppress(RuntimeError):  # it does already
            register_rendezvous_handler(scheme, _rendezvous)


def _rendezvous(
    url: str, timeout: timedelta = timedelta(minutes=30), **_: Any
) -> Iterator[tuple[RunStore, int, int]]:
    """Yield store, rank and number of ranks of a process group, as torch's own handlers do."""
    parts = urlsplit(url)
    query = dict(pair.split("=") for pair in parts.query.split("&"))
    store = RunStore(StoreAddress.parse(url))
    store.set_timeout(timeout)
    _stores.append(store)
    yield store, int(query["rank"]), int(query["world_size"])


class RunStore(dist.Store):  # type: ignore[misc, name-defined]
    """A client of the store server.

    Each thread has a connection of its own, so a thread that waits for a key holds up no other.
    Torch calls the methods from C++, some of them by other names than those for Python.
    """

    def __init__(self, address: StoreAddress) -> None:
        """Connect to the server at ``address`` with the first operation."""
        super().__init__()
        self._client = StoreClient(address)

    def clone(self) -> RunStore:
        """Return the store itself, which may be used by all threads."""
        return self

    def set(self, key: str, value: Value) -> None:
        """Set ``key`` to ``value``."""
        self._call("set", key, value)

    def get(self, key: str) -> bytes:
        """Return the value of ``key`` when it is set.

        Raises:
            DistStoreError: it was not set within the timeout of the store.
        """
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return the values of ``keys`` when all are set; see ``get``."""
        return self._call("get", *keys, timeout=self.timeout)

    def multi_set(self, keys: list[str], values: list[Value]) -> None:
        """Set each of ``keys`` to its value."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def append(self, key: str, value: Value) -> None:
        """Append ``value`` to that of ``key``."""
        self._call("append", key, value)

    def add(self, key: str, value: int) -> int:
        """Add to the number that ``key`` is set to, 0 if it is not set; return the sum."""
        return int(self._call("add", key, str(value))[0])

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Set ``key`` if it is ``expected``, or if that is empty and it is not set.

        Returns:
            The value of the key afterwards; ``expected`` if the key is not set.
        """
        return self._call("compare_set", key, expected, desired)[0]

    def check(self, keys: list[str]) -> bool:
        """Return whether all ``keys`` are set."""
        return self._call("check", *keys)[0] == b"1"

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all ``keys`` are set.

        Args:
            keys: names.
            timeout: for how long; by default the timeout of the store.

        Raises:
            DistStoreError: they were not all set in time.
        """
        self._call("wait", *keys, timeout=self.timeout if timeout is None else timeout)

    def delete_key(self, key: str) -> bool:
        """Delete ``key``; return whether it was set."""
        return self._call("delete", key)[0] == b"1"

    def num_keys(self) -> int:
        """Return the number of keys that are set."""
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """Return all keys that are set."""
        return [key.decode() for key in self._call("list")]

    def has_extended_api(self) -> bool:
        """Return whether there are ``append``, ``multi_get`` and ``multi_set``."""
        return True

    deleteKey, getNumKeys, listKeys = delete_key, num_keys, list_keys

    def _call(
        self, operation: str, *arguments: Value, timeout: timedelta | None = None
    ) -> list[bytes]:
        """Send a request; return the response."""
        seconds = None if timeout is None else max(timeout.total_seconds(), 1e-3)
        try:
            return self._client.call(operation, *arguments, timeout=seconds)
        except TimeoutError:
            names = ", ".join(str(argument) for argument in arguments)
            raise dist.DistStoreError(f"wait timeout after {timeout}, keys: {names}") from None
        except OSError as error:
            message = f"The store at {self._client.address}: {error}"
            raise dist.DistNetworkError(message) from error
