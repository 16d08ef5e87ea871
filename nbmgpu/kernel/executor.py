"""Runs an ``Execution`` from the notebook: start it, poll it until it is over, collect results.

Each function exists twice: blocking, and as a coroutine that awaits between polls, so that
the kernel's event loop is not blocked.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from nbmgpu.engines.registry import get_engine
from nbmgpu.options.run_options import RunOptions
from nbmgpu.report.digest import line_of
from nbmgpu.runs import polling, replacement
from nbmgpu.runs.events import ACTIVE_STATES
from nbmgpu.runs.run import Run
from nbmgpu.runs.run_list import find_run, iter_runs

from .dry_run import plan_text
from .execution import Execution
from .in_rank import refuse_inside_a_rank
from .interrupts import interrupts_to
from .later_write_back import LaterWriteBack
from .notebook_context import NotebookContext
from .resumed_options import reason_to_restart
from .run_display import DisplayFactory, RunDisplay

last_run: Run | None = None
"""The newest run of this process."""

_background: dict[str, Execution] = {}
"""Background runs of this process for whose results no call waits yet, by id."""


def execute(execution: Execution, display: DisplayFactory) -> Run | None:
    """Prepare and run ``execution`` to its end, with live output.

    Returns:
        The run, which has finished, or continues with ``--background``; None for ``--dry-run``
        and ``--export``.
    """
    refuse_inside_a_rank()
    execution.prepare()
    if execution.options.dry_run:
        print(plan_text(execution))
        return None
    if execution.options.export:
        from .cell_export import export_cell  # which imports torch

        print(export_cell(execution))
        return None
    if execution.options.in_background:
        run = start(execution)
        _background[run.id] = execution
        return run
    with interrupts_to(execution.interrupt):
        start(execution)
        return wait_for_results(execution, execution.run, display)


async def execute_async(execution: Execution, display: DisplayFactory) -> Run | None:
    """Do what ``execute`` does without blocking the event loop."""
    options = execution.options
    if options.dry_run or options.export or options.in_background:
        return execute(execution, display)
    refuse_inside_a_rank()
    with interrupts_to(execution.interrupt):  # ipykernel would cancel this task
        execution.prepare()
        start(execution)
        return await wait_for_results_async(execution, execution.run, display)


def start(execution: Execution) -> Run:
    """Start a prepared execution and make its run ``nbmgpu.last_run``."""
    global last_run
    last_run = execution.start()
    return last_run


def wait_for_results(execution: Execution, run: Run, display: DisplayFactory) -> Run:
    """Show a started ``execution`` until it is over, and write its results back.

    Args:
        execution: has been started.
        run: a reader of its run; it shows events from the first that this one has not read.
        display: makes what shows it.
    """
    while True:
        with _show_execution(execution, run, display) as output:
            for pause in _poll(execution, run, output):
                time.sleep(pause)
            if _collect(execution, run, output):
                return execution.run
        run = _restart(execution)


async def wait_for_results_async(execution: Execution, run: Run, display: DisplayFactory) -> Run:
    """Do what ``wait_for_results`` does, awaiting between polls."""
    while True:
        with _show_execution(execution, run, display) as output:
            for pause in _poll(execution, run, output):
                await asyncio.sleep(pause)
            if _collect(execution, run, output):
                return execution.run
        run = _restart(execution)


class _Reader:
    """A run that another process has started, as ``_poll`` needs it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        options = run.record.options
        self._engine = get_engine(options.engine, options.detached)

    @property
    def over(self) -> bool:
        """Whether it is over, and no other run is to replace it, or that one has started."""
        if not self.run.over:
            return False
        return replacement.replacement_of(self.run) is not None or not self._is_to_start_again

    @property
    def _is_to_start_again(self) -> bool:
        if not self._engine.outlives_kernel:
            return False
        since = time.time() - self.run.view.last_time
        options = RunOptions(**self.run.record.options.values)
        return since < replacement.START_TIMEOUT and bool(reason_to_restart(options, self.run))

    def sync(self) -> None:
        self._engine.sync(self.run)


def monitor(run: Run, display: DisplayFactory) -> Run:
    """Show a run of another process until it is over, and those that replace it.

    Its results are written back if that process has ended, and the run has outlived it.
    """
    following: Run | None = run
    while following is not None:
        run = following
        with _show(run, NotebookContext.current(), display) as output:
            for pause in _poll(_Reader(run), run, output):
                time.sleep(pause)
        following = replacement.replacement_of(run)
    _write_back_later(run)
    return run


async def monitor_async(run: Run, display: DisplayFactory) -> Run:
    """Do what ``monitor`` does, awaiting between polls."""
    following: Run | None = run
    while following is not None:
        run = following
        with _show(run, NotebookContext.current(), display) as output:
            for pause in _poll(_Reader(run), run, output):
                await asyncio.sleep(pause)
        following = replacement.replacement_of(run)
    _write_back_later(run)
    return run


def _write_back_later(run: Run) -> None:
    """Write the results of a run back that has outlived its own kernel, and say so."""
    _Reader(run).sync()
    later = LaterWriteBack(run, NotebookContext.current().namespace)
    if later.is_due:
        later.apply()
        print(f"Results of run {run.id}: {'; '.join(later.texts) or 'none'}")


def _poll(source: Execution | _Reader, run: Run, output: RunDisplay) -> Iterator[float]:
    """Show new output of ``run`` until it is over; yield seconds until the next poll.

    It is also over for this call when another one has started the cell again.
    """
    while source.run.id == run.id and not source.over and run.view.restart is None:
        source.sync()
        output.update()
        yield polling.EVENTS.pause(run)


def _collect(execution: Execution, run: Run, output: RunDisplay) -> bool:
    """Show the last of ``run`` and write its results back, unless ``attach`` does so.

    Returns:
        Whether the cell is done, or another call goes on with it; False if it is to start again.
    """
    output.update()
    if run.id != execution.run.id or (run is execution.run and execution.taken_over):
        return True
    if run is execution.run and execution.is_to_restart:
        execution.discard()
        output.discard()
        return False
    if execution.is_to_resume:
        return False
    execution.finish()
    return True


def _restart(execution: Execution) -> Run:
    """Start the cell again; return its new run, for which the caller waits."""
    global last_run
    replaced = execution.run
    run = execution.resume() if execution.is_to_resume else execution.restart()
    last_run = run if last_run is replaced else last_run
    execution.taken_over = False
    if execution.options.in_background:
        _background[run.id] = execution
    return run


@contextmanager
def _show_execution(
    execution: Execution, run: Run, display: DisplayFactory
) -> Iterator[RunDisplay]:
    """Show the run of ``execution`` as ``run`` reads it; see ``_end`` if that fails."""
    try:
        with _show(run, execution.context, display) as output:
            try:
                yield output
            finally:
                _end(execution, run)
    finally:
        _end(execution, run)  # also where it could not be shown at all


def _end(execution: Execution, run: Run) -> None:
    """Remove ``run`` from the background runs; kill it if it is active, unless it is detached.

    A detached run is then in the background again: whoever has waited for it was interrupted.
    """
    if run.id != execution.run.id:  # another call has started the cell again
        return
    if execution.options.is_detached and not execution.over:
        _background[run.id], execution.taken_over = execution, False
        return
    _background.pop(run.id, None)
    if not execution.over:
        execution.abandon()


@contextmanager
def _show(run: Run, context: NotebookContext, display: DisplayFactory) -> Iterator[RunDisplay]:
    output = display(run, context)
    output.start()
    try:
        yield output
    finally:
        output.finish()


def interrupts_of_attach(execution: Execution) -> AbstractContextManager[None]:
    """Let an interrupt of ``attach`` stop the run; it only ends the waiting for a detached one."""
    return nullcontext() if execution.options.is_detached else interrupts_to(execution.interrupt)


def select_run(name: str = "") -> Run:
    """Return the run whose id begins with ``name``; by default the newest active one.

    This kernel's runs come before those of others.  If no run is active, it is the newest of all.

    Raises:
        OptionError: there is no such run.
    """
    if name:
        return find_run(name)
    going = [run for run in iter_runs() if line_of(run).status.state in ACTIVE_STATES]
    own = [run for run in going if run.record.kernel.is_this_process]
    return [*own, *going, find_run()][0]


def take_over(name: str) -> tuple[Run, Execution | None]:
    """Return the run whose id begins with ``name``, with none of its events read.

    If it has started again, it is the run that has replaced it.  By default it is the newest
    background run of this process, or else what ``select_run`` finds.

    Returns:
        The run, and its execution if it is a background run of this process: the caller then
        writes its results back.

    Raises:
        OptionError: there is no such run.
    """
    # Own runs come first: their results are in this process even if the folder was removed.
    own = [execution.run for run_id, execution in _background.items() if run_id.startswith(name)]
    is_own = own and (len(own) == 1 or not name)
    run = _reopen(own[-1]) if is_own else replacement.newest_of(select_run(name))
    execution = _background.pop(run.id, None)
    if execution is not None:
        execution.taken_over = True
    return run, execution


def _reopen(run: Run) -> Run:
    """Return a reader that has read nothing of ``run`` yet, if its folder is still there."""
    try:
        return Run(run.folder)
    except FileNotFoundError:
        return copy.copy(run)
