"""What the magic does, as plain functions."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import rhythm
from .bundle import VALUE
from .errors import LaunchError, OptionError, compose
from .interrupts import interrupts_to
from .kernel import Execution
from .options import RunOptions
from .plan import plan_text
from .run import Run, find_run
from .surroundings import Surroundings

if TYPE_CHECKING:
    from .rank.session import Session
    from .ui.live import LiveOutput

last_run: Run | None = None
"""The newest run of this process."""

_background: dict[str, Execution] = {}
"""Runs of this process that nobody waits for yet, by id."""


@dataclass(frozen=True)
class LaunchResult:
    """What a function returned: ``value`` on rank 0, ``per_rank`` on each, in rank order."""

    value: Any
    per_rank: list[Any]
    run: Run


def run(source: str, namespace: dict[str, Any] | None = None, **options: Any) -> Run | None:
    """Run ``source`` on ranks as if it ran in ``namespace``, and wait for it.

    Args:
        source: Python, with IPython's magics and shell lines if one likes.
        namespace: where names are read and bound; the caller's globals by default.
        options: as the magic's flags, with underscores: ``strategy="ddp"``, ``gpus=2``,
            ``batch="global"``, ``seed=0``, ``pull=("model",)``, ``timeout=60`` (seconds), ...
            With ``background=True`` the call returns at once; ``nbmgpu.attach()`` waits for
            the run and brings its results home.

    Returns:
        The run, which has finished, or with ``background=True`` has begun; None with
        ``dry_run=True``, which prints the plan and starts nothing.

    Raises:
        OptionError: an option is unknown, or cannot be had here.
        SyntaxError, UnknownNameError: the source cannot run anywhere.
        StrategyError, ShippingError, LaunchError: the run could not begin.
        BaseException: what the source raised on a rank, of its own type.
        RankError: a rank has ended without an exception of its own.
        RunTimeoutError: it took longer than ``timeout``.
        KeyboardInterrupt: it was stopped.
        ResultsError: it ran to its end, and its results are lost.
    """
    if namespace is None:
        namespace = sys._getframe(1).f_globals
    chosen = RunOptions.of(**options)
    execution = Execution(source, namespace, chosen, Surroundings.current())
    return conduct(execution)


def launch(function: Callable[..., Any], *args: Any, **options: Any) -> LaunchResult:
    """Call ``function(*args)`` on every rank; what it changes in ``args`` is changed here.

    Args:
        function: any function, also one defined in the notebook or in ``__main__``.
        args: what to call it with.
        options: as for ``run``, but ``background`` and ``dry_run``.  All keywords are options: to
            give the function some, ``functools.partial(function, name=value)``.

    Returns:
        What the function returned, on rank 0 and on each rank, and the run, which has finished.

    Raises:
        OptionError: an option is unknown, cannot be had here, or is one of those two.
        BaseException: as of ``run``.
    """
    namespace = function.__globals__ if hasattr(function, "__globals__") else {}
    call = {**namespace, "_nbmgpu_function": function, "_nbmgpu_args": args}
    source = "_nbmgpu_function(*_nbmgpu_args)"
    chosen = RunOptions.of(**options)
    if chosen.background or chosen.dry_run:
        what = "nbmgpu.launch waits for the function's result"
        raise OptionError(compose(what, instead="nbmgpu.run(..., background=True)"))
    finished = conduct(Execution(source, call, chosen, Surroundings.current()))
    assert finished is not None
    ranks = range(finished.record.world_size)
    per_rank = [finished.results.get(rank, {}).get(VALUE) for rank in ranks]
    return LaunchResult(per_rank[0], per_rank, finished)


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


def follow(execution: Execution, run: Run) -> Run:
    """Watch a started ``execution`` to its end through ``run``, and bring its results home."""
    with showing(execution, run) as output:
        for pause in looks(execution, run, output):
            time.sleep(pause)
        conclude(execution, run, output)
    return execution.run


def looks(watched: Execution | Run, run: Run, output: LiveOutput) -> Iterator[float]:
    """Show what is new of ``run`` until ``watched`` is over; yield the seconds to the next look."""
    while not watched.over:
        output.take()
        yield rhythm.EVENTS.pause(run)


def conclude(execution: Execution, run: Run, output: LiveOutput) -> None:
    """Show the last of ``run`` and bring its results home, unless another reader of it will."""
    output.take()
    if run is not execution.run or not execution.taken_over:
        execution.finish()


@contextmanager
def showing(execution: Execution, run: Run) -> Iterator[LiveOutput]:
    """Show the run of ``execution`` as ``run`` reads it; end it if watching it fails."""
    with shown(run, execution.surroundings) as output:
        try:
            yield output
        finally:
            _background.pop(run.id, None)
            if not execution.over:
                execution.abandon()


@contextmanager
def shown(run: Run, surroundings: Surroundings) -> Iterator[LiveOutput]:
    """Show ``run`` here, with a Stop button."""
    from .ui.live import LiveOutput

    output = LiveOutput(run, surroundings)
    output.start()
    try:
        yield output
    finally:
        output.finish()


def attach(name: str = "") -> Run:
    """Watch the run whose id begins with ``name``, by default the newest, to its end.

    Results come home if this process has started it; other processes' runs are only shown.

    Returns:
        The run, which is over: it has finished if this process has started it, and another
        one may also have failed.

    Raises:
        OptionError: there is no such run.
        BaseException: as of ``run``, for a run of this process.
    """
    run, execution = take_over(name)
    if execution is not None:
        with interrupts_to(execution.interrupt):
            return follow(execution, run)
    with shown(run, Surroundings.current()) as output:
        for pause in looks(run, run, output):
            time.sleep(pause)
    return run


def take_over(name: str) -> tuple[Run, Execution | None]:
    """Return the run whose id begins with ``name``, by default the newest, to be read anew.

    With it comes its execution, if it is in this process's background: the caller now brings
    its results home.

    Raises:
        OptionError: there is no such run.
    """
    # Its own come first: their results are here even if somebody has removed the folder.
    own = [execution.run for run_id, execution in _background.items() if run_id.startswith(name)]
    run = opened_anew(own[0]) if name and len(own) == 1 else find_run(name)
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


def begin(execution: Execution) -> Run:
    """Start a prepared execution and remember its run as ``nbmgpu.last_run``."""
    global last_run
    last_run = execution.start()
    return last_run


def refuse_inside_a_rank() -> None:
    """Raise LaunchError in a rank: runs do not nest."""
    if session_here() is not None:
        raise LaunchError("This is a rank of a run already; a run cannot start another one.")


def log(**values: Any) -> None:
    """Put metrics on the run's curves: ``nbmgpu.log(acc=0.9)``.

    A value is a number or a tensor with one element; ranks are averaged by their samples.
    Outside a run this does nothing, so a cell may keep the line.

    Raises:
        TypeError: in a run, a value is not one number.
    """
    if (session := session_here()) is not None:
        session.log(values)


def session_here() -> Session | None:
    """Return the session of the rank that this process is, None in a notebook.

    Looked up where a rank has it: to import it would be to import torch.
    """
    module = sys.modules.get("nbmgpu.rank.session")
    return None if module is None else module.current
