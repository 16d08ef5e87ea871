"""How a run is followed from the notebook: begun, looked at until it is over, brought home."""

from __future__ import annotations

import asyncio
import copy
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nbmgpu.report.digest import line_of
from nbmgpu.runs import polling
from nbmgpu.runs.events import GOING
from nbmgpu.runs.run import Run, find_run, list_runs

from .dry_run import plan_text
from .execution import Execution
from .in_rank import refuse_inside_a_rank
from .interrupts import interrupts_to
from .notebook_context import Surroundings

if TYPE_CHECKING:
    from nbmgpu.ui.live_output import LiveOutput

last_run: Run | None = None
"""The newest run of this process."""

_background: dict[str, Execution] = {}
"""Runs of this process that nobody waits for yet, by id."""


def conduct(execution: Execution) -> Run | None:
    """Take ``execution`` from its preparation to its end, with live output."""
    refuse_inside_a_rank()
    execution.prepare()
    if execution.options.dry_run:
        print(plan_text(execution))
        return None
    if execution.options.background:
        run = begin(execution)
        _background[run.id] = execution
        return run
    with interrupts_to(execution.interrupt):
        begin(execution)
        return follow(execution, execution.run)


async def conduct_awaited(execution: Execution) -> Run | None:
    """Do what ``conduct`` does while the event loop goes on."""
    if execution.options.dry_run or execution.options.background:
        return conduct(execution)
    refuse_inside_a_rank()
    execution.prepare()
    with interrupts_to(execution.interrupt):
        begin(execution)
        return await follow_awaited(execution, execution.run)


def begin(execution: Execution) -> Run:
    """Start a prepared execution and remember its run as ``nbmgpu.last_run``."""
    global last_run
    last_run = execution.start()
    return last_run


def follow(execution: Execution, run: Run) -> Run:
    """Watch a started ``execution`` to its end through ``run``, and bring its results home."""
    with showing(execution, run) as output:
        for pause in looks(execution, run, output):
            time.sleep(pause)
        conclude(execution, run, output)
    return execution.run


async def follow_awaited(execution: Execution, run: Run) -> Run:
    """Do what ``follow`` does, awaiting between looks."""
    with showing(execution, run) as output:
        for pause in looks(execution, run, output):
            await asyncio.sleep(pause)
        conclude(execution, run, output)
    return execution.run


def watch(run: Run) -> Run:
    """Show ``run`` until it is over; nothing of it comes home."""
    with shown(run, Surroundings.current()) as output:
        for pause in looks(run, run, output):
            time.sleep(pause)
    return run


async def watch_awaited(run: Run) -> Run:
    """Do what ``watch`` does, awaiting between looks."""
    with shown(run, Surroundings.current()) as output:
        for pause in looks(run, run, output):
            await asyncio.sleep(pause)
    return run


def looks(watched: Execution | Run, run: Run, output: LiveOutput) -> Iterator[float]:
    """Show what is new of ``run`` until ``watched`` is over; yield the seconds to the next look."""
    while not watched.over:
        output.take()
        yield polling.EVENTS.pause(run)


def conclude(execution: Execution, run: Run, output: LiveOutput) -> None:
    """Show the last of ``run`` and bring its results home, unless another reader of it will."""
    output.take()
    if run is not execution.run or not execution.taken_over:
        execution.finish()


@contextmanager
def showing(execution: Execution, run: Run) -> Iterator[LiveOutput]:
    """Show the run of ``execution`` as ``run`` reads it; end it if that fails."""
    try:
        with shown(run, execution.surroundings) as output:
            try:
                yield output
            finally:
                _end(execution, run)
    finally:
        _end(execution, run)  # also where it could not be shown at all


def _end(execution: Execution, run: Run) -> None:
    """See that nothing of ``run`` goes on, or is waited for."""
    _background.pop(run.id, None)
    if not execution.over:
        execution.abandon()


@contextmanager
def shown(run: Run, surroundings: Surroundings) -> Iterator[LiveOutput]:
    """Show ``run`` here, with a Stop button."""
    from nbmgpu.ui.live_output import LiveOutput

    output = LiveOutput(run, surroundings)
    output.start()
    try:
        yield output
    finally:
        output.finish()


def meant(name: str = "") -> Run:
    """Return the run whose id begins with ``name``; by default the newest that goes on.

    This kernel's come before those of others.  Where none goes on, it is the newest of all.

    Raises:
        OptionError: there is no such run.
    """
    if name:
        return find_run(name)
    going = [run for run in list_runs() if line_of(run).state in GOING]
    own = [run for run in going if run.record.kernel_pid == os.getpid()]
    return [*own, *going, find_run()][0]


def take_over(name: str) -> tuple[Run, Execution | None]:
    """Return the run whose id begins with ``name``, to be read anew.

    By default it is the newest of this process's background, or else the one that is ``meant``.

    With it comes its execution, if it is in this process's background: the caller now brings
    its results home.

    Raises:
        OptionError: there is no such run.
    """
    # Its own come first: their results are here even if somebody has removed the folder.
    own = [execution.run for run_id, execution in _background.items() if run_id.startswith(name)]
    run = opened_anew(own[-1]) if own and (len(own) == 1 or not name) else meant(name)
    execution = _background.pop(run.id, None)
    if execution is not None:
        execution.taken_over = True
    return run, execution


def opened_anew(run: Run) -> Run:
    """Return a reader that has read nothing of ``run`` yet, if its folder is still there."""
    try:
        return Run(run.folder)
    except FileNotFoundError:
        return copy.copy(run)
