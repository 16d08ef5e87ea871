"""The process of the reference: prepare as a rank of one, run the cell, end without a trace."""

from __future__ import annotations

import functools
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist

from nbmgpu.patches import PatchStack
from nbmgpu.rank import current
from nbmgpu.rank.data.shared_batches import SharedBatches
from nbmgpu.rank.device import enter_device
from nbmgpu.rank.metrics.heartbeat import HeartbeatThread
from nbmgpu.rank.rank_environment import RankEnvironment
from nbmgpu.rank.reporting import notices, stdio
from nbmgpu.rank.reporting.recorder import Recorder
from nbmgpu.rank.reporting.shard_topics import OTHER_NUMBERS
from nbmgpu.rank.restart import WITHIN, describe_failure, obstacle
from nbmgpu.rank.rng.seeding import SeedSource
from nbmgpu.rank.shell import RankShell, make_shell
from nbmgpu.rank.source_analysis.notebook_code import NotebookCode
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
from nbmgpu.runs.events import LAUNCHER, Event, Notice, Restart, Verified
from nbmgpu.runs.folder import REFERENCE_FOLDER
from nbmgpu.runs.run import Run
from nbmgpu.runs.undo_log import UndoLog
from nbmgpu.system.parent_death import die_with_parent
from nbmgpu.trackers import registry as trackers

from .comparison import HALF, TF32, StepComparison, ValueDifference
from .descriptions import describe_gradient, describe_value
from .isolation import Isolation
from .one_device import NoReferenceError, alone_on, free_device, limit_memory, use_temporary_folder
from .sketches import sketches_of
from .step_file import MOST_STEPS
from .value_comparison import CLOCKS, ValueComparison
from .values import CellValues

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nbmgpu.rank.session import TrainingSession
    from nbmgpu.runs.record import RunRecord

NICENESS = 15
"""Of 19 at most; see setpriority(2) and sched(7)."""

FEWEST_STEPS = 2
"""Steps that are compared also where each takes longer than the time for all."""

GROWN_ROUNDING = "rounding has grown as large as the gradients"
"""Why a comparison ends where training diverges."""

TELLING = 1.0
"""Seconds between two reports of how many steps were compared."""

ITEMSIZE = 4
"""Bytes of a number in float32."""


def run_reference(run: Run, environment: RankEnvironment) -> NoReturn:
    """Run the cell of ``run`` in this process, compare, and exit."""
    verification = Reference(run)
    try:
        if environment.parent is not None:
            die_with_parent(environment.parent, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _yield_to_others()
        environment.apply()
        stdio.redirect(verification.log)
        verification.run()
    except NoReferenceError as error:
        verification.end(reason=str(error))
    except BaseException as error:
        traceback.print_exc()  # what one device cannot run, such as for its memory, ranks can
        verification.end(reason=f"one device {describe_failure(error)}")
    finally:
        verification.end()
        os._exit(0)


def _yield_to_others() -> None:
    """Let ranks come first where there are fewer cores than processes, or too little memory.

    Linux may schedule sessions as groups, among which the niceness of processes does not count.
    """
    os.nice(NICENESS)
    for setting, value in ("autogroup", NICENESS), ("oom_score_adj", 1000):
        with suppress(OSError):
            Path(f"/proc/self/{setting}").write_text(str(value))


class Reference:
    """Compares the steps of this process with those of the ranks of a run.

    Attributes:
        log: the file for the output of the process.
    """

    def __init__(self, run: Run) -> None:
        """Compare with ``run``."""
        self.log = run.folder / "logs" / "reference.log"
        self._run = run
        self._options = run.record.options  # of the run, before it is that of one device
        self._number = run.record.world_size
        self._began = time.monotonic()
        self._process = os.getpid()
        self._undo_log = UndoLog(run.folder)
        self._comparison = StepComparison(run.folder, run.record.world_size)
        if self._options.values.get("precision") == "bf16":
            self._comparison.tolerance = HALF
        # With whole batches, what still differs is a number of ranks that the cell has asked for.
        self._has_whole_batches = self._options.values["exact"] == "always"
        self._values = CellValues()
        self._namespace: dict[str, Any] = {}
        self._first_compared = self._last_told = 0.0

    def run(self) -> None:
        """Run the cell on one device, and compare each step and the end."""
        session, shell = self._prepare(alone_on(free_device(self._run), self._run.record))
        self._namespace = shell.user_ns
        if not self._has_whole_batches:
            self._comparison.values = ValueComparison(self._reads_clock)
        outcome = shell.run(self._run.cell)
        if outcome.error is not None:
            failure = describe_failure(outcome.error)
            reference.write_error(self._run.folder, failure)
            self.end(reason=reference.reason_of_failure(failure))
        elif session.progress.backwards or self._comparison.steps:
            values = self._values.at_end()
            difference = self._comparison.compare_end(values, self._is_late)
            if difference is not None:
                self._report(describe_value(difference))
            self.end(is_whole=self._comparison.has_all)

    def _reads_clock(self) -> bool:
        return not CLOCKS.isdisjoint(NotebookCode.from_cell(self._run.cell, self._namespace).names)

    def _prepare(self, record: RunRecord) -> tuple[TrainingSession, RankShell]:
        """Prepare as the only rank of a run, which can change nothing that others see."""
        run = self._run
        run.record = record
        use_temporary_folder(run.folder / REFERENCE_FOLDER / "tmp")
        events = EventWriter(run.folder / REFERENCE_FOLDER / "events.jsonl", 0)  # nobody reads it
        recorder = Recorder(events, 1)
        device = enter_device(record, 0)
        limit_memory(device)
        if device != "cpu":  # convolutions round their factors, by default
            self._comparison.tolerance = max(self._comparison.tolerance, TF32)
        registry = OptimizerRegistry()
        registry.install()
        isolation = Isolation(run.folder, self._number, lambda why: self.end(reason=why))
        store: Any = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backends(device, shared=False), store=store, rank=0, world_size=1)
        shell = make_shell(events, recorder, self.log, self._number)
        session = open_session(record, 0, device, recorder, registry)
        follow_run(run, session, shell, HeartbeatThread(events, self.log, device))
        self._patch(session, f"{run.id} {record.created}")
        current.metrics_log = session.metrics
        current.shared_batches = SharedBatches(session.loaders.context, session.loaders)
        session.trackers.is_muted = True  # also where unpickling goes on with the notebook's runs
        trackers.silence()
        isolation.begin(shell)
        receive(run, session, shell, isolation.files)
        isolation.enforce(session.strategy.join_save)
        return session, shell

    def _patch(self, session: TrainingSession, seed: str) -> None:
        step_patch, _ = install_patches(session, None, seed)
        step_patch.observe = functools.partial(self._compare, session)
        step_patch.reevaluate = self.end  # how far a line search goes may depend on rounding
        SeedSource(session.streams, seed).install()  # so that it draws the seeds that ranks draw
        patches = PatchStack()
        patches.wrap("torch.amp.autocast_mode.autocast.__enter__", self._noting_precision)
        patches.wrap("torch.amp.GradScaler.step", self._ending_if_scaled)

    def end(self, is_whole: bool = False, reason: str = "") -> None:
        """Report what was compared, and why no more, and end."""
        if os.getpid() == self._process:  # no worker of a loader
            steps = self._comparison.steps
            with suppress(OSError):
                self._emit(Verified, steps=steps, is_whole=is_whole, reason=reason)
            self._exit()

    def _exit(self) -> NoReturn:
        reference.end(self._run.folder)
        stdio.flush()
        os._exit(0)

    def _emit(self, cls: type[Event], **fields: Any) -> None:
        with closing(EventWriter(self._run.events_path("reference"), LAUNCHER)) as events:
            events.emit(cls, **fields)

    def _noting_precision(self, enter: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(enter)
        def noting(context: Any) -> Any:
            if context._enabled:
                self._comparison.tolerance = HALF
            return enter(context)

        return noting

    def _ending_if_scaled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """End at a step of a scaler: gradients of a shard overflow at other scales."""

        @functools.wraps(step)
        def ending(scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> Any:
            if scaler.is_enabled():
                self.end(reason="a GradScaler may skip other steps there")
            return step(scaler, *args, **kwargs)

        return ending

    def _compare(self, session: TrainingSession, optimizer: Optimizer, number: int) -> None:
        """Compare the gradients of an ``optimizer`` with its number, which is about to step."""
        comparison = self._comparison
        parameters = (p for unit in session.trained.units for p in unit.parameters())
        if any(p.is_floating_point() and p.dtype.itemsize < ITEMSIZE for p in parameters):
            comparison.tolerance = HALF
        sketches, values = sketches_of(optimizer, session.strategy), self._values.at_step()
        difference = comparison.compare(number, sketches, values, self._is_late)
        if isinstance(difference, ValueDifference):
            self._report(describe_value(difference))
        elif difference is not None and difference.has_grown and self._has_whole_batches:
            self.end(reason=GROWN_ROUNDING)
        elif difference is not None:
            self._report(describe_gradient(difference, session, optimizer, self._namespace))
        now = time.monotonic()
        self._first_compared = self._first_compared or now
        if now - self._last_told > TELLING:  # it may be killed before it has compared all
            self._last_told = now
            self._emit(Verified, steps=comparison.steps, is_whole=False)
        is_long = now - self._first_compared > self._options.verify
        is_enough = (is_long and comparison.steps >= FEWEST_STEPS) or comparison.steps == MOST_STEPS
        if is_enough or comparison.is_over or self._is_late():
            self.end()

    def _is_late(self) -> bool:
        """Return whether the cell could not start again any more."""
        return time.monotonic() - self._began > WITHIN

    def _report(self, reason: str) -> NoReturn:
        """Let the cell start again for a ``reason``, or say why it does not, and end."""
        options = self._options
        why_not = obstacle(self._undo_log, time.monotonic() - self._began)
        if not options.may_restart:
            why_not = "runs in the background, or with --compile"
        if self._has_whole_batches:
            self._notice(notices.OTHER_GRADIENTS_OF_WHOLE_BATCHES.format(reason=reason))
        elif not why_not:
            self._emit(Restart, reason=reason)
        elif not self._is_explained():
            self._notice(notices.OTHER_GRADIENTS.format(reason=reason, obstacle=why_not))
        self._exit()

    def _notice(self, text: str) -> None:
        self._emit(Notice, topic="other-gradients", text=text)

    def _is_explained(self) -> bool:
        """Return whether a rank has said what differs, and why the cell does not start again."""
        run = Run(self._run.folder)
        run.refresh()
        return not OTHER_NUMBERS.isdisjoint(run.view.notices)
