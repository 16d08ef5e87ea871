"""What trackers have in common, without any of their libraries."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nbmgpu.trackers.base import NotebookTrackers, PickledType, RankLogging
from nbmgpu.trackers.mlflow_stores import OpenedAtFirstUse, RankStores
from nbmgpu.trackers.registry import TRACKERS
from nbmgpu.trackers.repeated_points import RepeatedPoints


class RecordingStore:
    """Records the calls that a store gets."""

    def __init__(self, history: tuple[tuple[int, float], ...] = ()) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.history = history

    def log_metric(self, run_id: str, metric: Any) -> None:
        self.calls.append(("log_metric", metric.key, metric.step))

    def log_batch(self, run_id: str, metrics: Any, params: Any, tags: Any) -> None:
        self.calls.append(("log_batch", [metric.step for metric in metrics], params))

    def get_metric_history(self, run_id: str, key: str) -> Any:
        return [SimpleNamespace(step=step, timestamp=time * 1000) for step, time in self.history]

    def get_run(self, run_id: str) -> str:
        self.calls.append(("get_run",))
        return run_id

    def create_run(self, name: str) -> str:
        return f"run of {name}"


def metric(step: int) -> Any:
    return SimpleNamespace(key="loss", step=step)


def test_no_tracker_is_imported_for_a_notebook_that_uses_none() -> None:
    libraries = [tracker.library for tracker in TRACKERS]
    code = (
        "import sys; from nbmgpu.trackers import registry; import nbmgpu.serialization\n"
        "assert registry.capture().begun == {}\n"
        f"print([name for name in {libraries} if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


def test_rank_0_logs_and_others_do_not() -> None:
    assert not RankLogging(rank=0, shards_data=True).silent
    assert RankLogging(rank=1, shards_data=True).silent
    assert not RankLogging(rank=1, shards_data=False).silent  # --strategy none
    compared = RankLogging(rank=0, shards_data=True)
    compared.receive(NotebookTrackers({"wandb": "run"}, muted=True))
    assert compared.silent
    assert compared.begun("wandb") == "run"


def test_the_notebooks_run_may_arrive_before_and_after_the_library_is_imported() -> None:
    rank, seen = RankLogging(), []
    rank.once_received(lambda: seen.append(rank.begun("mlflow")))
    assert seen == []
    rank.receive(NotebookTrackers({"mlflow": 1}))
    rank.once_received(lambda: seen.append(rank.begun("mlflow")))
    assert seen == [1, 1]


def test_what_rank_0_makes_is_known_to_all() -> None:
    sent = {}

    def broadcast(rank: int, name: str, value: Any) -> Any:
        return sent.setdefault(name, value) if rank == 0 else sent[name]

    stores = {
        rank: RankStores(
            RankLogging(
                rank=rank, shards_data=True, broadcast=lambda n, v, r=rank: broadcast(r, n, v)
            )
        ).tracking(lambda uri: RecordingStore())("uri")
        for rank in (0, 1)
    }
    assert stores[0].create_run("a") == "run of a"
    assert stores[1].create_run("b") == "run of a"
    assert stores[1].log_metric("run", metric(1)) is None


def test_points_are_held_back_as_long_as_the_cell_may_start_again() -> None:
    real, may_restart = RecordingStore(), [True]
    rank = RankLogging(may_restart=lambda: may_restart[0])
    stores = RankStores(rank)
    opened = []
    store = stores.tracking(lambda uri: opened.append(uri) or real)("uri")
    store.log_metric("run", metric(1))
    store.log_batch("run", [metric(2)], [], [])
    assert opened == []  # not even connected to
    assert store.get_run("run") == "run"  # reads what is written
    assert real.calls == [("log_metric", "loss", 1), ("log_batch", [2], []), ("get_run",)]
    store.log_metric("run", metric(3))
    assert len(real.calls) == 3
    may_restart[0] = False
    store.log_metric("run", metric(4))
    assert real.calls[3:] == [("log_metric", "loss", 3), ("log_metric", "loss", 4)]
    may_restart[0] = True
    store.log_metric("run", metric(5))
    stores.close(0)
    assert real.calls[-1] == ("log_metric", "loss", 5)


@pytest.mark.parametrize("resuming", [True, False])
def test_a_resumed_cell_skips_what_was_logged(resuming: bool) -> None:
    real = RecordingStore(history=((0, 10.0), (1, 10.0), (2, 30.0), (2, 31.0)))
    rank = RankLogging(resumed_from=20.0, is_resuming=lambda: resuming)
    store = RankStores(rank).tracking(lambda uri: real)("uri")
    for step in (0, 1, 2, 2, 2, 3):
        store.log_metric("run", metric(step))
    logged = [2, 2, 2, 3] if resuming else [0, 1, 2, 3]
    assert [call[2] for call in real.calls] == logged


def test_points_are_read_at_the_first_use() -> None:
    loads: list[int] = []

    def load() -> tuple[list[int], list[int]]:
        loads.append(1)
        return [], [7]

    points = RepeatedPoints(load, RankLogging())
    assert loads == []
    assert [points.has(7), points.has(7), points.has(8)] == [True, False, False]
    assert loads == [1]


def test_a_store_is_opened_once() -> None:
    opened = OpenedAtFirstUse(object)
    assert opened.opened is None
    assert opened() is opened()


def test_types_are_found_without_their_library() -> None:
    kind = type("Writer", (), {"__module__": "library.writers"})
    derived = type("Mine", (kind,), {"__module__": "__main__"})
    exact = PickledType("library", "Writer", lambda obj: None)
    wide = PickledType("library", "Writer", lambda obj: None, with_subclasses=True)
    assert [exact.matches(kind), exact.matches(derived)] == [True, False]
    assert [wide.matches(kind), wide.matches(derived), wide.matches(int)] == [True, True, False]
