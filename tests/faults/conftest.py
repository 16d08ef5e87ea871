"""Sessions that live as long as no fault ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sessions import KernelSession, PlainSession, ServerSession, Session

SESSIONS: dict[str, type[Session]] = {
    "kernel": KernelSession,
    "Jupyter server": ServerSession,
}

Sessions = Callable[[str], Session]


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """Return a live session for the role that a fault hits; a new one after its end."""
    live: dict[type[Session], Session] = {}

    def make(role: str) -> Session:
        kind = SESSIONS.get(role, PlainSession)
        if kind in live and not live[kind].alive:
            live.pop(kind).close()
        if kind not in live:
            folder = Path(tmp_path_factory.mktemp("f"))
            live[kind] = kind(folder)
            live[kind].ask(cell="answer = 6 * 7", seconds=120)
        return live[kind]

    yield make
    for session in live.values():
        session.close()
