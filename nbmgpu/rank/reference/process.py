"""The process of the reference: prepare as a rank of one, run the cell, end without a trace."""

from __future__ import annotations

import functools
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist

from nbmgpu.patches import PatchStack
from nbmgpu.rank import current
from nbmgpu.rank.data.shared_batches import SharedBatches
from nbmgpu.rank.device import enter_device
from nbmgpu.rank.effects import FileChange, watch_effects
from nbmgpu.rank.files.saves import Saves
from nbmgpu.rank.files.writes import FilePatch
from nbmgpu.rank.metrics.heartbeat import HeartbeatThread
from nbmgpu.rank.rank_environment import RankEnvironment
from nbmgpu.rank.reporting import notices, stdio
from nbmgpu.rank.reporting.recorder import Recorder
from nbmgpu.rank.reporting.shard_topics import OTHER_NUMBERS
from nbmgpu.rank.restart import WITHIN, obstacle
from nbmgpu.rank.shell import make_shell
from nbmgpu.rank.startup import (
    backends,
    follow_run,
    install_patches,
    open_session,
    receive,
)
from nbmgpu.rank.training.optimizer_registry import OptimizerRegistry
from nbmgpu.runs import reference
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import LAUNCHER, Notice, Restart, Verified
from nbmgpu.runs.folder import REFERENCE_FOLDER
from nbmgpu.runs.number_topics import OTHER_GRADIENTS, OTHER_STEPS
from nbmgpu.runs.run import Run
from nbmgpu.runs.undo_log import UndoLog
from nbmgpu.system.parent_death import die_with_parent
from nbmgpu.trackers import registry as trackers

from .comparison import HALF, TF32, Difference, StepComparison
from .one_device import alone, free_device, limit_memory
from .sketches import sketches_of
from .step_file import MOST_STEPS

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nbmgpu.rank.session import TrainingSession
    from nbmgpu.runs.record import RunRecord

NUMBER = 1
"""Number of the rank that it would be: not 0, which writes the files of the cell."""

NICENESS = 15
"""Of 19 at most; see setpriority(2) and sched(7)."""

FEWEST_STEPS = 2
"""Steps that are compared also where each takes longer than the time for all."""

ITEMSIZE = 4
"""Bytes of a number in float32."""

FOLDER_TIMEOUT = 2.0
"""Seconds within which rank 0 makes a folder that the reference has reached before it."""


def run_reference(run: Run, environment: RankEnvironment) -> NoReturn:
    """Run the cell of ``run`` in this process, compare, and exit."""
    try:
        if environment.parent is not None:
            die_with_parent(environment.parent, signal.SIGKILL)
        _run_behind_others()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.environ.update(environment.variables())
        stdio.redirect(run.folder / "logs" / "reference.log")
        Reference(run).run()
    except BaseException:
        traceback.print_exc()  # what one device cannot run, such as for its memory, ranks can
    finally:
        reference.end(run.folder)
        stdio.flush()
        os._exit(0)


def _run_behind_others() -> None:
    """Let ranks come first where there are fewer cores than processes.

    Linux may schedule sessions as groups, among which the niceness of processes does not count.
    """
    os.nice(NICENESS)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICENESS))


class Reference:
    """Compares the steps of this process with those of the ranks of a run."""

    def __init__(self, run: Run) -> None:
        """Compare with ``run``."""
        self._run = run
        self._began = time.monotonic()
        self._process = os.getpid()
        self._undo_log = UndoLog(run.folder)
        self._comparison = StepComparison(run.folder, run.record.world_size)
        if run.record.options.values.get("precision") in ("bf16", "fp16"):
            self._comparison.tolerance = HALF
        self._first_compared = 0.0

    def run(self) -> None:
        """Run the cell on one device, and compare each step and the end."""
        session = self._prepare(alone(self._run.record, free_device(self._run)))
        outcome = self._shell.run(self._run.cell)
        if outcome.error is None and (session.progress.backwards or self._comparison.steps):
            self._report(self._comparison.compare_end(self._is_late), session, None)
            self.end(is_whole=True)

    def _prepare(self, record: RunRecord) -> TrainingSession:
        """Prepare as the only rank of a run, which can change nothing that others see."""
        run = self._run
        run.record = record
        events = EventWriter(run.folder / REFERENCE_FOLDER / "events.jsonl", 0)  # nobody reads it
        log, recorder = run.folder / "logs" / "reference.log", Recorder(events, 1)
        device = enter_device(record, 0)
        limit_memory(device)
        if device != "cpu":  # convolutions round their factors, by default
            self._comparison.tolerance = max(self._comparison.tolerance, TF32)
        registry = OptimizerRegistry()
        registry.install()
        files = FilePatch(NUMBER, run.folder)
        files.saves = _NoSaves(self.end)
        store: Any = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backends(device, shared=False), store=store, rank=0, world_size=1)
        self._shell = make_shell(events, recorder, log, NUMBER)
        session = open_session(record, 0, device, recorder, registry)
        follow_run(run, session, self._shell, HeartbeatThread(events, log, device))
        step_patch, _ = install_patches(session, None, f"{run.id} {record.created}")
        step_patch.observe = functools.partial(self._compare, session)
        current.metrics_log = session.metrics
        current.shared_batches = SharedBatches(session.loaders.context, session.loaders)
        receive(run, session, self._shell, files)
        files.install(session.strategy.join_save)
        trackers.silence()
        ends: Any = lambda *_: self.end()  # noqa: E731
        self._shell.system, self._shell.getoutput = ends, ends  # type: ignore[method-assign]
        watch_effects(run.folder, self._check_change, ends)
        PatchStack().wrap("torch.amp.autocast_mode.autocast.__enter__", self._noting_precision)
        return session

    def end(self, is_whole: bool = False) -> None:
        """Report what was compared, and end; also before the cell does what others can see."""
        if os.getpid() == self._process:  # no worker of a loader
            events, steps = self._events(), self._comparison.steps
            events.emit(Verified, steps=steps, is_whole=is_whole)
            self._exit()

    def _exit(self) -> NoReturn:
        reference.end(self._run.folder)
        os._exit(0)

    def _events(self) -> EventWriter:
        return EventWriter(self._run.events_path("reference"), LAUNCHER)

    def _check_change(self, change: FileChange) -> None:
        """End before a change of files, unless it is a folder that rank 0 makes as well."""
        deadline = time.monotonic() + FOLDER_TIMEOUT
        while change.event == "os.mkdir" and not change.is_relative:
            if os.path.isdir(change.path):
                return  # the call finds it, as on the ranks
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        self.end()

    def _noting_precision(self, enter: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(enter)
        def noting(context: Any) -> Any:
            if context._enabled:
                self._comparison.tolerance = HALF
            return enter(context)

        return noting

    def _compare(self, session: TrainingSession, optimizer: Optimizer) -> None:
        """Compare the gradients of ``optimizer``, which steps by them."""
        rows, comparison = sketches_of(optimizer, session.strategy), self._comparison
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        if any(parameter.dtype.itemsize < ITEMSIZE for parameter in parameters):
            comparison.tolerance = HALF
        self._report(comparison.compare(rows, self._is_late), session, optimizer)
        self._first_compared = self._first_compared or time.monotonic()
        is_long = time.monotonic() - self._first_compared > self._run.record.options.verify
        is_enough = (is_long and comparison.steps >= FEWEST_STEPS) or comparison.steps == MOST_STEPS
        if is_enough or self._is_late():
            self.end()

    def _is_late(self) -> bool:
        """Return whether the cell could not start again any more."""
        return time.monotonic() - self._began > WITHIN

    def _report(
        self, difference: Difference | None, session: TrainingSession, optimizer: Optimizer | None
    ) -> None:
        """Let the cell start again if there is a difference, and end."""
        if difference is None:
            return
        reason = OTHER_STEPS.format(step=difference.step)
        if difference.parameter is not None and optimizer is not None:
            name = _name_of(difference.parameter, session, optimizer)
            error = difference.error
            reason = OTHER_GRADIENTS.format(step=difference.step, name=name, error=error)
        why_not = obstacle(self._undo_log, time.monotonic() - self._began)
        if not self._run.record.options.may_restart:
            why_not = "runs in the background, or with --compile"
        if why_not and not self._is_explained():
            text = notices.OTHER_GRADIENTS.format(reason=reason, obstacle=why_not)
            self._events().emit(Notice, topic="other-gradients", text=text)
        elif not why_not:
            self._events().emit(Restart, reason=reason)
        self._exit()

    def _is_explained(self) -> bool:
        """Return whether a rank has said what differs, and why the cell does not start again."""
        run = Run(self._run.folder)
        run.refresh()
        return not OTHER_NUMBERS.isdisjoint(run.view.notices)


class _NoSaves(Saves):
    """Ends the process before a library saves a file."""

    def __init__(self, end: Callable[[], None]) -> None:
        super().__init__(NUMBER, lambda path: False, lambda path: None)
        self._end = end

    def wrap(
        self, save: Callable[..., Any], position: int, pickles: bool = False
    ) -> Callable[..., Any]:
        """Return a function that saves to buffers alone."""

        @functools.wraps(save)
        def saving(*args: Any, **kwargs: Any) -> Any:
            given = args[position] if len(args) > position else None
            if given is None or isinstance(given, str | os.PathLike):
                self._end()
            return save(*args, **kwargs)

        return saving


def _name_of(index: int, session: TrainingSession, optimizer: Optimizer) -> str:
    """Return the name of a parameter of ``optimizer``, such as ``Linear.weight``."""
    parameter = [p for group in optimizer.param_groups for p in group["params"]][index]
    for unit in session.trained.units:
        for module in unit.modules:
            for name, other in module.named_parameters():
                if other is parameter:
                    return f"{type(module).__name__}.{name}"
    return f"parameter {index}"
