"""A run whose launcher and ranks are played by a test: real files, no processes."""

from __future__ import annotations

import os
import time
from typing import Any

from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.event_lines import encode
from nbmgpu.runs.events import (
    Ended,
    Event,
    Exited,
    Failure,
    Heartbeat,
    Metrics,
    Notice,
    ParameterShards,
    Progress,
    Started,
    Status,
    Stderr,
)
from nbmgpu.runs.folder import new_run_id, trace_path
from nbmgpu.runs.profile_event import StepProfile
from nbmgpu.runs.record import KernelRecord, LaunchOptions, RunRecord, StoragePaths
from nbmgpu.runs.run import Run
from nbmgpu.system.processes import own_process

CELL = "for x, y in loader:\n    loss = criterion(model(x), y)\n    loss.backward()\n"


def _updated(defaults: dict[str, Any], part: type, fields: dict[str, Any]) -> dict[str, Any]:
    """Take the fields of ``part`` out of ``fields``, over ``defaults``."""
    names = part.__annotations__.keys() & fields.keys()
    return defaults | {name: fields.pop(name) for name in names}


class StagedRun:
    """A run folder, and a pen for everybody who writes into it."""

    def __init__(self, world_size: int = 2, *, cell: str = CELL, **fields: Any) -> None:
        """Create the folder of a run; ``fields`` are those of its record, nested ones included."""
        options = {
            "strategy": "ddp", "batch": "global", "seed": None, "timeout": None, "fresh": False,
        }  # fmt: skip
        kernel = own_process() | {"cwd": os.getcwd(), "sys_path": []}
        storage = {"bundle": "", "results": []}
        record = RunRecord(
            id=fields.pop("id", None) or new_run_id(),
            created=fields.pop("created", None) or time.time(),
            devices=fields.pop("devices", ["cpu"] * world_size),
            batch_line=fields.pop("batch_line", ""),
            nodes=fields.pop("nodes", 1),
            options=LaunchOptions(**_updated(options, LaunchOptions, fields)),
            kernel=KernelRecord(**_updated(kernel, KernelRecord, fields)),
            storage=StoragePaths(**_updated(storage, StoragePaths, fields)),
        )
        assert not fields
        self.run = Run.create(record, cell)
        self.events = self.run.folder / "events"
        self.launcher = EventWriter(self.events / "launcher.jsonl", -1)
        self.ranks = [EventWriter(self.events / f"rank-{k}.jsonl", k) for k in range(world_size)]

    def start(self) -> None:
        """The launcher and all ranks live, and run the cell."""
        self.launcher.emit(Started, **own_process())
        for rank in self.ranks:
            rank.emit(Started, **own_process(), device="cpu")
            rank.emit(Status, state="running")

    def points(
        self, name: str, steps: list[int], values: list[float], rank: int = 0, weight: float = 1.0
    ) -> None:
        weights = [weight] * len(steps)
        self.ranks[rank].emit(Metrics, name=name, steps=steps, values=values, weights=weights)

    def progress(self, step: int, total: int, **fields: Any) -> None:
        fields = {"key": "loader", "label": "epoch 1", "epoch": 1} | fields
        self.ranks[0].emit(Progress, step=step, total=total, **fields)

    def progress_at(self, time: float, step: int, total: int, **fields: Any) -> None:
        """The same, as if it had been said at ``time``."""
        fields = {"key": "loader", "label": "epoch", "epoch": 1} | fields
        self.write(0, Progress(time=time, rank=0, step=step, total=total, **fields))

    def write(self, rank: int, event: Event) -> None:
        """Write an event as it is."""
        with (self.events / f"rank-{rank}.jsonl").open("a") as file:
            file.write(encode(event) + "\n")

    def notice(self, text: str, topic: str = "topic", rank: int = 0) -> None:
        self.ranks[rank].emit(Notice, topic=topic, text=text)

    def heartbeat(self, rank: int, step: int = 0, **fields: Any) -> None:
        """A beat of a rank, with the size its log has now."""
        self.vitals_at(time.time(), rank, step, **fields)

    def vitals_at(self, time: float, rank: int, step: int = 0, **fields: Any) -> None:
        """The same, as if it had been at ``time``."""
        log = self.run.log_path(rank)
        known = {
            "step_time": 0.01, "own_time": 0.004, "cpu": 50.0, "cores": 2,
            "memory": 1 << 28, "memory_total": 1 << 32,
            "logged": log.stat().st_size if log.exists() else 0,
        }  # fmt: skip
        self.write(rank, Heartbeat(time=time, rank=rank, step=step, **(known | fields)))

    def shards(self, rank: int, elements: dict[str, int], stored: dict[str, int]) -> None:
        """A rank stores ``stored`` of the ``elements`` of each layer, 4 bytes each."""
        self.ranks[rank].emit(
            ParameterShards,
            layers=list(elements),
            elements=list(elements.values()),
            stored=list(stored.values()),
            nbytes=[4 * count for count in stored.values()],
        )

    def profile(self, rank: int, trace: bytes = b"trace", **fields: Any) -> None:
        """A rank has profiled steps 5 to 10, 20 ms each, and written ``trace``."""
        trace_path(self.run.folder, rank).write_bytes(trace)
        known = {
            "first": 5, "last": 10, "step_time": 0.02, "compute": 0.01, "communication": 0.005,
            "hidden": 0.001, "data": 0.004, "host": 0.001, "nbytes": len(trace),
        }  # fmt: skip
        self.ranks[rank].emit(StepProfile, **(known | fields))

    def fail(
        self,
        rank: int,
        type: str = "ValueError",
        message: str = "bad",
        line: int = 2,
        traceback: tuple[str, ...] = (),
    ) -> None:
        fields = {"type": type, "message": message, "line": line, "traceback": list(traceback)}
        self.ranks[rank].emit(Failure, **fields)
        self.ranks[rank].emit(Status, state="failed")

    def exit(self, rank: int, code: int) -> None:
        self.launcher.emit(Exited, of_rank=rank, code=code)

    def finish(self) -> None:
        """All ranks come to a good end."""
        for rank in self.ranks:
            rank.emit(Status, state="finished")
            self.exit(rank.rank, 0)
        self.end("finished")

    def end(self, ending: str, detail: str = "") -> None:
        self.launcher.emit(Ended, ending=ending, detail=detail)

    def log(self, rank: int, text: str | bytes, stderr: bool = False) -> None:
        data = text if isinstance(text, bytes) else text.encode()
        if stderr:
            path = self.run.log_path(rank)
            start = path.stat().st_size if path.exists() else 0
            self.ranks[rank].emit(Stderr, start=start, end=start + len(data))
        with self.run.log_path(rank).open("ab") as file:
            file.write(data)

    def polled(self) -> Run:
        """The run after it has read everything."""
        self.run.poll()
        return self.run

    def close(self) -> None:
        """Everybody puts the pen down."""
        for writer in [self.launcher, *self.ranks]:
            writer.close()


class Stage:
    """Makes staged runs, and closes them when it is left."""

    def __init__(self) -> None:
        self.runs: list[StagedRun] = []

    def __call__(self, *args: Any, **fields: Any) -> StagedRun:
        self.runs.append(StagedRun(*args, **fields))
        return self.runs[-1]

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exception: object) -> None:
        for run in self.runs:
            run.close()
