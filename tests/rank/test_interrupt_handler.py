"""When a signal interrupts a rank, and what it tells the launcher."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nbmgpu.rank import interrupts
from nbmgpu.rank.interrupts import (
    SHELL_MODULE,
    STEP_TIMEOUT,
    InterruptHandler,
    SynchronizedInterruptHandler,
)
from nbmgpu.rank.shell import RankShell
from nbmgpu.runs.folder import HANDLING_FILE, HOLDING_FILE, INTERRUPTED_FILE
from nbmgpu.runs.stacks import CELL_FILE_MARK


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in interrupts.INTERRUPTS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signalled() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)


def in_shell(function: Callable[[], None]) -> None:
    """Call a function as the method of the shell that runs the cell does."""
    assert RankShell.__module__ == SHELL_MODULE
    shell: dict[str, Any] = {"__name__": SHELL_MODULE}
    exec(f"def {RankShell.run.__name__}(function): function()", shell)
    shell["run"](function)


def in_cell() -> None:
    code = compile("signalled()", f"<{CELL_FILE_MARK}-1>", "exec")
    exec(code, {"__name__": "__main__", "signalled": signalled})


@pytest.mark.parametrize(("rank", "told"), [(0, True), (1, False)])
def test_rank_0_tells_that_it_has_noticed(tmp_path: Path, rank: int, told: bool) -> None:
    InterruptHandler(tmp_path, rank).install()
    with pytest.raises(KeyboardInterrupt):
        in_shell(in_cell)
    assert (tmp_path / INTERRUPTED_FILE).exists() is told


def test_the_shell_is_not_interrupted_beside_the_cell(tmp_path: Path) -> None:
    """A second signal arrives when IPython has caught the first one, on a busy machine."""
    InterruptHandler(tmp_path, 0).install()
    in_shell(signalled)
    assert (tmp_path / INTERRUPTED_FILE).exists()


def test_a_cell_that_awaits_is_interrupted(tmp_path: Path) -> None:
    """It has no frame of its own while the event loop waits."""
    from IPython.core.async_helpers import _asyncio_runner

    async def wait() -> None:
        signalled()

    InterruptHandler(tmp_path, 0).install()
    with pytest.raises(KeyboardInterrupt):
        in_shell(lambda: _asyncio_runner(wait()))


def test_ranks_wait_for_long_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is sharded over ranks can be gathered."""
    now = 100.0
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now)
    monkeypatch.setattr(interrupts.dist, "all_reduce", lambda *_, **__: Reduced())
    handler = SynchronizedInterruptHandler(tmp_path, 0)
    handler.install()
    for _ in range(2):  # steps of three seconds
        handler.synchronize()
        now += 3.0
    signalled()
    assert (tmp_path / HOLDING_FILE).exists()
    assert (tmp_path / HANDLING_FILE).exists()
    now += 2 * STEP_TIMEOUT
    signalled()
    handler.synchronize()
    with pytest.raises(KeyboardInterrupt):
        handler.synchronize()
    assert handler.stopped_together


def test_a_step_that_takes_much_longer_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now)
    monkeypatch.setattr(interrupts.dist, "all_reduce", lambda *_, **__: Reduced())
    handler = SynchronizedInterruptHandler(tmp_path, 0)
    handler.install()
    for _ in range(2):  # short steps
        handler.synchronize()
        now += 0.1
    signalled()
    assert not (tmp_path / HANDLING_FILE).exists()
    now += 1.2 * STEP_TIMEOUT
    with pytest.raises(KeyboardInterrupt):
        signalled()


class Reduced:
    def wait(self) -> None:
        """Do nothing: there is one rank."""
