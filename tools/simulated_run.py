"""Write the folder of a run on many ranks, without processes, to see whether readers keep up.

    NBMGPU_RUNS=FOLDER python tools/simulated_run.py --ranks 1024 --nodes 128 --seconds 60

Every file is written as ranks and launcher write it, with ``EventWriter``. While this process
lives, the run is in progress, and each rank appends once a second what a rank writes then. With
``--failed N``, the last N ranks fail in the end.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time

from nbmgpu.rank.reporting.recorder import write_interval
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import (
    LAUNCHER,
    Ended,
    Exited,
    Failure,
    Heartbeat,
    Metrics,
    Progress,
    Started,
    Status,
)
from nbmgpu.runs.folder import new_run_id
from nbmgpu.runs.record import KernelRecord, LaunchOptions, RunRecord, StoragePaths
from nbmgpu.runs.run import MANY_RANKS, Run
from nbmgpu.runs.view import RunView
from nbmgpu.system.processes import own_process

CELL = "for x, y in loader:\n    loss = criterion(model(x), y)\n    loss.backward()\n"

STEPS_PER_SECOND = 10
"""Steps of the simulated training."""

MEMORY, MEMORY_TOTAL = 3 << 30, 64 << 30
"""Bytes of a rank, and of its machine."""


class SimulatedRun:
    """A run folder whose launcher and ranks are this object."""

    def __init__(self, world_size: int, nodes: int, strategy: str = "ddp") -> None:
        """Create the folder, and the event file of each rank."""
        self.nodes, self.steps, self._random = nodes, 0, random.Random(0)
        self._interval = write_interval(world_size)
        options = LaunchOptions(
            strategy=strategy, batch="global", seed=None, timeout=None, fresh=False
        )
        record = RunRecord(
            id=new_run_id(),
            created=time.time(),
            devices=[f"cuda:{rank % (world_size // nodes)}" for rank in range(world_size)],
            batch_line=f"global batch {32 * world_size} = {world_size} ranks x 32",
            nodes=nodes,
            options=options,
            kernel=KernelRecord(**own_process(), cwd=os.getcwd(), sys_path=[]),
            storage=StoragePaths("", []),
        )
        self.run = Run.create(record, CELL)
        self.launcher = EventWriter(self.run.events_path("launcher"), LAUNCHER)
        self.ranks = [
            EventWriter(self.run.events_path(f"rank-{rank}"), rank) for rank in range(world_size)
        ]

    def start(self) -> None:
        """The launcher and all ranks live, and run the cell."""
        self.launcher.emit(Started, **own_process())
        for rank, events in enumerate(self.ranks):
            host = f"node{rank // self.run.record.ranks_per_node:03}" if self.nodes > 1 else ""
            device = self.run.record.devices[rank]
            events.emit(Started, **own_process(), device=device, host=host)
            events.emit(Status, state="running")

    def advance(self, seconds: int = 1) -> None:
        """Every rank writes what it writes in ``seconds`` of training."""
        for _ in range(seconds):
            first, self.steps = self.steps, self.steps + STEPS_PER_SECOND
            for rank in range(len(self.ranks)):
                self.advance_rank(rank, first)

    def advance_rank(self, rank: int, first: int) -> None:
        """Write the events of one second, from step ``first`` on: points, heartbeat and output."""
        events = self.ranks[rank]
        last, together = first + STEPS_PER_SECOND, round(self._interval * STEPS_PER_SECOND)
        for begin in range(first, last, together):
            steps = list(range(begin, min(begin + together, last)))
            losses = [2 * math.exp(-s / 500) + 0.05 * self._random.random() for s in steps]
            weights = [32.0] * len(steps)
            events.emit(Metrics, name="loss", steps=steps, values=losses, weights=weights)
            fields = {"key": "loader", "label": "epoch", "epoch": 1, "total": 100_000}
            events.emit(Progress, step=steps[-1] + 1, **fields)
        rate = {"steps": [last - 1], "values": [32.0 * STEPS_PER_SECOND], "weights": [1.0]}
        events.emit(Metrics, name="samples/s", **rate)
        log = self.run.log_path(rank)
        with log.open("a") as file:
            file.write(f"rank {rank} at step {last}: loss {losses[-1]:.4f}\n")
        events.emit(
            Heartbeat,
            step=last,
            step_time=1 / STEPS_PER_SECOND,
            own_time=(0.3 + 0.01 * self._random.random()) / STEPS_PER_SECOND,
            cpu=90 + 10 * self._random.random(),
            cores=8,
            memory=MEMORY + self._random.randrange(1 << 28),
            memory_total=MEMORY_TOTAL,
            gpu=95.0,
            gpu_memory=40 << 30,
            gpu_memory_total=80 << 30,
            logged=log.stat().st_size,
            passes=last,
        )

    def fail(self, rank: int) -> None:
        """An exception ends the cell of one rank."""
        fields = {"type": "RuntimeError", "message": "CUDA error: out of memory", "line": 3}
        self.ranks[rank].emit(Failure, **fields, traceback=["  loss.backward()", "RuntimeError"])
        self.ranks[rank].emit(Status, state="failed")
        self.launcher.emit(Exited, of_rank=rank, code=1)

    def end(self) -> None:
        """The other ranks finish, or are terminated if some have failed; the run is over."""
        failed = {k for k, rank in enumerate(self.view.ranks) if rank.failure}
        for rank, events in enumerate(self.ranks):
            if rank in failed:
                continue
            if not failed:
                events.emit(Status, state="finished")
            self.launcher.emit(
                Exited, of_rank=rank, code=-15 if failed else 0, terminating=bool(failed)
            )
        self.launcher.emit(Ended, ending="failed" if failed else "finished")

    @property
    def view(self) -> RunView:
        """The state that the run has now."""
        self.run.refresh()
        return self.run.view

    def close(self) -> None:
        """Close all files."""
        for events in [self.launcher, *self.ranks]:
            events.close(merge=events.rank > 0 and len(self.ranks) > MANY_RANKS)


def main() -> None:
    """Write a run that takes as long as the options say."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--history", type=int, default=60, help="seconds before it is shown")
    parser.add_argument("--seconds", type=int, default=60, help="seconds in which it grows")
    parser.add_argument("--failed", type=int, default=0, help="ranks that fail in the end")
    options = parser.parse_args()
    simulated = SimulatedRun(options.ranks, options.nodes)
    simulated.start()
    simulated.advance(options.history)
    print(simulated.run.folder, flush=True)
    for _ in range(options.seconds):
        begun = time.monotonic()
        simulated.advance()
        time.sleep(max(0.0, begun + 1 - time.monotonic()))
    for rank in range(options.ranks - options.failed, options.ranks):
        simulated.fail(rank)
    simulated.end()
    simulated.close()


if __name__ == "__main__":
    main()
