"""The stages in which ranks are ended, without ranks."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock

import pytest

from nbmgpu.engines import termination
from nbmgpu.engines.multi_node.remote_ranks import RemoteRanks
from nbmgpu.engines.rank_processes import RankProcesses
from nbmgpu.engines.termination import Termination
from nbmgpu.runs.folder import COLLECTING_FILE, INTERRUPTED_FILE


class Ranks(RankProcesses):
    def __init__(self) -> None:
        self.signals: list[tuple[signal.Signals, bool]] = []

    def alive(self) -> bool:
        return True

    def poll(self) -> list[tuple[int, int]]:
        return []

    def signal(self, sig: signal.Signals, others: bool = False) -> None:
        self.signals.append((sig, others))


class OnNodes(Ranks):
    patience: ClassVar[float] = RemoteRanks.patience


def killed_after(
    folder: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch, limit: float = 400.0
) -> float | None:
    """Return after how many seconds rank 0 is killed."""
    now = 0.0
    monkeypatch.setattr(termination.time, "monotonic", lambda: now)
    ending = Termination(ranks, folder, Mock(poll=lambda: False))
    ending.start("stopped")
    while now < limit:
        ending.advance()
        if (signal.SIGKILL, False) in ranks.signals:
            return now
        now += 0.05
    return None


def test_a_rank_that_does_not_react_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert killed_after(tmp_path, Ranks(), monkeypatch) == pytest.approx(1.7, abs=0.1)


def test_other_ranks_are_killed_once_rank_0_has_written_its_result_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / COLLECTING_FILE).touch()
    ranks, now = Ranks(), 0.0
    monkeypatch.setattr(termination.time, "monotonic", lambda: now)
    ending = Termination(ranks, tmp_path, Mock(poll=lambda: False))
    ending.rank_ended(0)
    ending.start("failed")
    ending.advance()
    now = 2.0
    ending.advance()
    assert (signal.SIGKILL, True) in ranks.signals


def test_nodes_have_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's workers have a low priority: on a busy node they get little of the processor."""
    seconds = killed_after(tmp_path, OnNodes(), monkeypatch)
    assert seconds is not None
    assert seconds > 5


def test_a_rank_that_has_noticed_is_interrupted_again_and_killed_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / INTERRUPTED_FILE).touch()
    ranks = Ranks()
    assert killed_after(tmp_path, ranks, monkeypatch) == pytest.approx(12.0, abs=0.1)
    assert ranks.signals.count((signal.SIGINT, False)) > 20  # for a cell that swallows it
    assert (signal.SIGKILL, True) in ranks.signals  # rank 0 may wait for others


def test_a_rank_that_writes_its_result_has_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / COLLECTING_FILE).touch()
    assert killed_after(tmp_path, Ranks(), monkeypatch) == pytest.approx(300.0, abs=0.1)
