"""The life of a rank: unpack, join the group, run the cell, send back."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits

from nbmgpu.environment import logging_state, random_state, torch_settings
from nbmgpu.environment.headers import BundleHeader, ResultHeader
from nbmgpu.environment.tracker_run import TrackerRunUpdate
from nbmgpu.errors import StrategyError
from nbmgpu.patches import explain_missing, on_missing
from nbmgpu.runs.events import EventWriter, Started, Status
from nbmgpu.runs.run import COLLECTING_FILE, SHADOWS, Run, RunRecord, write_atomically
from nbmgpu.serialization import ReceivedBundle, is_complete, load_bundle, save_result, write_copies
from nbmgpu.strategies import StrategyOptions, all_reduce, load_strategy
from nbmgpu.strategies.base import RankContext, Strategy
from nbmgpu.strategies.mesh import make_mesh
from nbmgpu.system.parent_death import die_with_parent
from nbmgpu.system.processes import own_process

from . import command_line, frameworks, session
from .data.loader_patch import LoaderPatch
from .files import open_files, writes
from .interrupts import AgreedInterrupts, Interrupts
from .metrics import tqdm_progress
from .metrics.allocator import keep_freed_memory
from .metrics.heartbeat import Heartbeat
from .metrics.memory import MemoryUsage
from .rank_environment import RankEnvironment
from .reporting import failures, stdio
from .reporting.final_report import emit_final_report, emit_measurements
from .reporting.recorder import Recorder
from .rng.seeding import SeedSource
from .shell import Outcome, RankShell, make_shell
from .small_results import is_small
from .source_analysis.notebook_code import NotebookCode
from .store import broadcast
from .training import user_hooks
from .training.backward import BackwardTap
from .training.optimizer_registry import OptimizerWatch
from .training.optimizer_steps import StepTap
from .training.step_limit import Budget

NEW_MEMORY = 3 << 30
"""Bytes a second in which memory that was not there before is written."""


def main() -> NoReturn:
    """Run the rank that the command line and the environment variables describe."""
    folder, environment = command_line.parse()
    run = Run(folder)
    sys.path[:] = run.record.sys_path
    run_rank(run, environment)


def run_rank(run: Run, environment: RankEnvironment) -> NoReturn:
    """Run one rank of ``run`` in this process, and exit without tearing the interpreter down.

    Teardown sometimes aborts in threads of the process group (measured: 2 of 24).
    """
    rank = environment.rank
    os.environ.update(environment.variables())
    if environment.interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", environment.interface)
    if environment.shared_memory is not None:
        all_reduce.shared = all_reduce.SharedMemoryAllReduce(environment.shared_memory, rank)
    code = 1
    try:
        if environment.parent is not None:
            die_with_parent(environment.parent, signal.SIGKILL)
        Interrupts(run.folder).install()
        log = run.log_path(rank)
        stdio.redirect(log)
        events = EventWriter(run.events_path(f"rank-{rank}"), rank)
        events.emit(Started, **own_process(), device=run.record.devices[rank])
        with Heartbeat(events, log, run.record.devices[rank]):
            code = Rank(run, environment, events, log).live()
        events.close()
    except BaseException:
        traceback.print_exc()
    finally:
        stdio.flush()
        os._exit(code)


class Rank:
    """One rank of one run.

    Attributes:
        device: where it computes: ``cpu`` or ``cuda:0``, the only GPU that it sees.
        received: what has come from the notebook; the first thing that the cell needs.
        loaders: the tap that splits what loaders yield.
        steps: the tap that stands before optimizer steps.
        memory_usage: the memory that it takes, counted from just before the data came.
    """

    device: str
    received: ReceivedBundle
    loaders: LoaderPatch
    steps: StepTap
    memory_usage: MemoryUsage

    def __init__(
        self, run: Run, environment: RankEnvironment, events: EventWriter, log: Path
    ) -> None:
        """Know where to read and write."""
        rank = environment.rank
        self.init_method = environment.init_method
        self.run = run
        self.record: RunRecord = run.record
        self.rank = rank
        self.events = events
        self.recorder = Recorder(events)
        on_missing(self.recorder.notice)
        self.log = log
        self.files = writes.FilePatch(rank, run.folder / SHADOWS / f"rank-{rank}")
        self.namespace: dict[str, Any] = {}

    def live(self) -> int:
        """Do everything in order; return the exit code."""
        try:
            self.events.emit(Status, state="loading")
            self._enter_device()
            watch = OptimizerWatch()
            watch.install()
            self._join_group()
            shell = make_shell(self.events, self.recorder, self.log, self.rank)
            self.namespace = shell.user_ns
            current = self._open_session(watch)
            current.chances.load_code = lambda: NotebookCode.from_cell(self.run.cell, self.namespace)
            self.memory_usage = MemoryUsage()
            self.received = load_bundle(
                self.record.bundle,
                self.namespace,
                self.device,
                self.run.id,
                partial(self._welcome, current),
            )
            if current.budget.on:
                self.memory_usage.exclude_loaded_data()
            logging_state.apply(
                self.received.header.verbosity
            )  # some set it when they are imported
            shell.take_sources(self.received.header)
            self._take_over_settings()
            if current.distributes:
                self._be_one_of_many(shell)
            self.events.emit(Status, state="running")
        except Exception as error:
            self.recorder.flush()
            lines = traceback.format_exception(error)
            hint = explain_missing(error)
            failures.report(self.events, error, "", [*lines, *([f"\n{hint}"] if hint else [])])
            self.events.emit(Status, state="failed")
            return 1
        outcome = shell.run(self.run.cell)
        return self._end(current, outcome)

    def _enter_device(self) -> None:
        torch.set_num_threads(self.record.threads)
        keep_freed_memory(self.record.world_size)
        device = self.record.devices[self.rank]
        self.device = "cpu"
        if self.record.options.get("cpu"):  # as if the machine had no GPU
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        if device.startswith("cuda"):
            self._see_only([int(index) for index in device.split(":")[1].split(",")])
            self.device = "cuda:0"
            torch.cuda.set_device(0)

    def _see_only(self, indices: list[int]) -> None:
        """Show no other GPUs of the kernel's, so that "cuda" and "cuda:0" mean the rank's own."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = [name for name in visible.split(",") if name]
        chosen = [names[index] if names else str(index) for index in indices]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)

    def _join_group(self) -> None:
        backend = "gloo" if self.device == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(
            backend, self.init_method, rank=self.rank, world_size=self.record.world_size
        )

    def _welcome(self, current: session.Session, header: BundleHeader) -> None:
        """Take over what values may ask for when they arrive."""
        logging_state.apply(header.verbosity)
        current.trackers.begun = header.tracked

    def _take_over_settings(self) -> None:
        torch_settings.apply(self.received.header.settings)
        if (threads := torch.get_num_threads()) > 1:  # NumPy came with the server, which has one
            threadpool_limits(threads, user_api="blas")
        random_state.restore(self.received.header.random)
        if self.record.seed is not None:
            random_state.seed(self.record.seed)

    def _open_session(self, watch: OptimizerWatch) -> session.Session:
        """Put the taps in place; libraries' before the bundle, whose objects they take in."""
        record = self.record
        strategy_class = load_strategy(record.strategy)
        strategy = strategy_class(self._context(strategy_class))
        current = session.Session(
            self.rank, record.world_size, record.batch, strategy, self.recorder, watch
        )
        session.current = current
        current.budget = Budget(record.options.get("steps"))
        if current.distributes and strategy.shards_state:
            current.interrupts = AgreedInterrupts(self.run.folder)
            current.interrupts.install()
        self.loaders = LoaderPatch(current)
        self.loaders.install()
        if current.distributes:
            SeedSource(self.loaders.streams, f"{self.run.id} {record.created}").install()
        BackwardTap(current).install()
        user_hooks.install(current)
        self.steps = StepTap(current)
        self.steps.install()
        tqdm_progress.install(self.recorder)
        frameworks.install(current)
        return current

    def _context(self, strategy: type[Strategy]) -> RankContext:
        options = StrategyOptions.from_mapping(self.record.options)
        shape = strategy.mesh_shape(self.record.world_size, options)
        return RankContext(
            self.rank,
            self.record.world_size,
            make_mesh(shape, self.device),
            self.device,
            options,
            self.recorder.notice,
        )

    def _be_one_of_many(self, shell: RankShell) -> None:
        """Let what the cell does to the outside world happen once."""
        self.files.install()
        shell.share_commands(self.rank, self.files.forget_written)
        if self.rank:
            os.environ["WANDB_MODE"] = "disabled"

    def _end(self, current: session.Session, outcome: Outcome) -> int:
        """Tell how the cell ended, and send back what there is, also after a failure."""
        stopped = isinstance(outcome.error, KeyboardInterrupt)
        if current.budget.on:
            emit_measurements(self.events, current, self.memory_usage)
        together = stopped and current.interrupts and current.interrupts.together
        if outcome.error is None:
            broadcast.mark_finished()  # first: ranks may be waiting for this one
            outcome = self._finish_strategy(current, outcome)
        if self.rank == 0:
            with suppress(OSError):  # no room, or no folder any more: results need neither
                write_atomically(self.run.folder / COLLECTING_FILE, "")
        if together:
            current.strategy.finish()
        with suppress(OSError):
            self._say_how_it_ended(current, outcome, stopped)
        current.close()
        self.steps.remove()
        self.loaders.streams.leave_all_steps()
        open_files.flush()
        self.files.remove()
        self._save_result(outcome, current.trackers.leaving())
        for end in current.trackers.at_end:
            end(int(outcome.error is not None))
        self.recorder.flush()
        state = "stopped" if stopped else "failed" if outcome.error else "finished"
        place = failures.location_in_cell(outcome.error, self.run.cell) if outcome.error else ""
        self.events.emit(Status, state=state, detail=place if stopped else "")
        return int(outcome.error is not None)

    def _finish_strategy(self, current: session.Session, outcome: Outcome) -> Outcome:
        """Collect what is sharded; return how the cell ended, now that this may have failed."""
        try:
            current.strategy.finish()
        except StrategyError as error:
            lines = traceback.format_exception(error)
            return dataclasses.replace(outcome, error=error, traceback=lines)
        return outcome

    def _say_how_it_ended(self, current: session.Session, outcome: Outcome, stopped: bool) -> None:
        """Tell the failure, or what only the whole of a cell can tell."""
        if outcome.error is not None and not stopped:
            hint = current.strategy.explain(outcome.error) or explain_missing(outcome.error)
            lines = [*outcome.traceback, *([f"\n{hint}"] if hint else [])]
            failures.report(self.events, outcome.error, self.run.cell, lines)
        self.events.emit(Status, state="collecting")
        if outcome.error is None:
            emit_final_report(self.events, current, self.run.cell, self.namespace)

    def _save_result(self, outcome: Outcome, left: TrackerRunUpdate | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        path = self.record.results[self.rank]
        made = {n: self.namespace[n] for n in outcome.names if n in self.namespace}
        if self.rank:
            small = {name: value for name, value in made.items() if is_small(value)}
            write_copies(path, small | outcome.values(), self.namespace)
            return
        save_result(
            path,
            made | outcome.values(),
            ResultHeader(random_state.capture(), outcome.deleted, sorted(outcome.kept), left),
            self.received,
            self.namespace,
            outcome.kept,
            lambda nbytes: self._is_alone(0 if outcome.error else nbytes / NEW_MEMORY),
        )

    def _is_alone(self, patience: float) -> bool:
        """Tell whether all other ranks have sent their results, and so read the bundle no more.

        Args:
            patience: seconds for which it waits until they have.
        """
        deadline = time.monotonic() + patience
        while not (alone := all(map(is_complete, self.record.results[1:]))):
            if time.monotonic() > deadline:
                break
            time.sleep(0.002)
        return alone
