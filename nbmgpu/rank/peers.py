"""The other ranks of a run: whether one of them has failed when a connection to it is lost."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

from nbmgpu.runs.event_file import EventTail
from nbmgpu.runs.events import Exited
from nbmgpu.runs.run import Run

from .rank_environment import RankEnvironment
from .store.exit_reports import ExitReports
from .store.store_address import StoreAddress
from .store.store_client import StoreClient

REPORTED_WITHIN, REPORTED_BY_NODES = 0.5, 10.0
"""Seconds within which the end of a rank is reported: on this machine, and from another one."""

EXIT_CODE = 75
"""Of a rank that lets the cell start again: ``EX_TEMPFAIL``, a failure after which to try again."""

POLL = 0.01
"""Seconds."""


def peers_of(run: Run, environment: RankEnvironment) -> Peers:
    """Return the other ranks of ``run``."""
    if environment.nodes == 1:
        return LocalPeers(run.folder)
    return RemotePeers(StoreAddress.parse(environment.init_method))


class Peers(ABC):
    """The other ranks of a run."""

    @abstractmethod
    def have_failed(self) -> bool:
        """Return whether one was killed or interrupted, or has raised an exception.

        To be asked when this rank has lost a connection: the end of the other rank is reported at
        about the same time.
        """


class LocalPeers(Peers):
    """Ranks on this machine, whose ends the launcher reports as events."""

    def __init__(self, folder: Path) -> None:
        """Read the events of the run in ``folder``."""
        self._events = folder / "events" / "launcher.jsonl"

    def have_failed(self) -> bool:
        """Return whether one has; a rank whose end is not reported has come to its end."""
        tail, deadline = EventTail(self._events), time.monotonic() + REPORTED_WITHIN
        while time.monotonic() < deadline:
            for event in tail.read():
                if isinstance(event, Exited):
                    return _is_failure(event.code)
            time.sleep(POLL)
        return False


class RemotePeers(Peers):
    """Ranks on several nodes, whose ends node launchers report in the store of the run."""

    def __init__(self, address: StoreAddress) -> None:
        """Ask the store at ``address``."""
        self._store = StoreClient(address)

    def have_failed(self) -> bool:
        """Return whether one has; if no end is reported, the network between nodes has."""
        deadline = time.monotonic() + REPORTED_BY_NODES
        with suppress(OSError):  # the node of the store is lost
            while time.monotonic() < deadline:
                if codes := ExitReports.read(self._store).codes:
                    return any(map(_is_failure, codes.values()))
                time.sleep(POLL)
        return True


def _is_failure(code: int) -> bool:
    return code not in (0, EXIT_CODE)
