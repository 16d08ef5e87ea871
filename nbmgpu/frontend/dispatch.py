"""Implements ``%%mgpu`` and ``%mgpu``: parses a line and calls the library."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nbmgpu import comparison
from nbmgpu.cell.source import with_magic_line
from nbmgpu.comparison import ComparisonRunner, request
from nbmgpu.errors import OptionError, closest_match, format_message
from nbmgpu.kernel import executor, held_ranks
from nbmgpu.kernel.execution import Execution
from nbmgpu.kernel.notebook_context import NotebookContext
from nbmgpu.options.commands import COMMANDS
from nbmgpu.options.flags import FLAGS
from nbmgpu.options.run_options import RunOptions
from nbmgpu.runs.failure import without_traceback
from nbmgpu.ui.live_output import LiveOutput

from .help import usage
from .tracebacks import plain_errors

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_background_tasks: set[asyncio.Task[None] | None] = set()
"""Tasks that monitor background runs.  The event loop keeps only weak references to tasks."""


def run_cell(shell: InteractiveShell, line: str, cell: str) -> Any:
    """Run ``cell`` with the options on ``line``, and block until it ends."""
    if _print_help(line):
        return None
    cell = with_magic_line(f"%%mgpu {line}", cell)
    with plain_errors(shell, cell):
        if runner := _runner(shell, line, cell):
            comparison.execute(runner)
            return None
        execution = _execution(shell, line, cell)
        executor.execute(execution, LiveOutput)
    return execution.value


async def run_cell_awaited(shell: InteractiveShell, line: str, cell: str) -> Any:
    """Run ``cell`` with the options on ``line``, without blocking the kernel's event loop."""
    if _print_help(line):
        return None
    cell = with_magic_line(f"%%mgpu {line}", cell)
    with plain_errors(shell, cell):
        if runner := _runner(shell, line, cell):
            await comparison.execute_async(runner)
            return None
        execution = _execution(shell, line, cell)
        run = await executor.execute_async(execution, LiveOutput)
        if run is not None and execution.options.in_background:
            _background_tasks.add(asyncio.ensure_future(_monitor_in_background(shell, execution)))
    return execution.value


def run_line(shell: InteractiveShell, line: str) -> Any:
    """Run the command at the beginning of ``line`` with the rest of the line."""
    if _print_help(line):
        return None
    command, _, rest = line.strip().partition(" ")
    if command not in COMMANDS:
        near = closest_match(command, COMMANDS) or "runs"
        what = f"There is no %mgpu {command}" if command else "%mgpu needs a command"
        allowed, instead = f"Commands: {', '.join(COMMANDS)}", f"%mgpu {near}"
        if command in request.TABLES:
            allowed = "It is a cell magic: put it above the cell to run"
            instead = f"%%mgpu {line.strip()}"
        raise without_traceback(OptionError(format_message(what, allowed, instead)))
    from . import commands  # also imports the advisor

    with plain_errors(shell):
        return getattr(commands, command)(rest.strip())


async def attach_awaited(shell: InteractiveShell, line: str) -> None:
    """Attach to the run on ``line``, without blocking the kernel's event loop."""
    if _print_help(line):
        return
    with plain_errors(shell):
        run, execution = executor.take_over(line.partition(" ")[2].strip())
        if execution is None:
            await executor.monitor_async(run, LiveOutput)
            return
        with executor.interrupts_of_attach(execution):
            await executor.wait_for_results_async(execution, run, LiveOutput)


def _print_help(line: str) -> bool:
    """Print the help text if ``line`` asks for help; return whether it does."""
    text = usage(line)
    if text:
        print(text)
    return bool(text)


def _execution(shell: InteractiveShell, line: str, cell: str) -> Execution:
    options, held = held_ranks.adopt(RunOptions.parse(line))
    return Execution(cell, shell.user_ns, options, NotebookContext(shell), held=held)


def _runner(shell: InteractiveShell, line: str, cell: str) -> ComparisonRunner | None:
    """Return the comparison that a ``compare`` or ``scale`` line describes, else None."""
    kind, _, rest = line.strip().partition(" ")
    if kind not in request.TABLES:
        _check_misspelling(kind, rest)
        return None
    held_ranks.refuse(f"%%mgpu {kind} needs ranks of its own, and starts none")
    return ComparisonRunner(request.parse(kind, rest), cell, shell.user_ns, NotebookContext(shell))


async def _monitor_in_background(shell: InteractiveShell, execution: Execution) -> None:
    """Monitor a background run; its errors are shown in the cell that started it."""
    try:
        with plain_errors(shell, execution.source):
            await executor.wait_for_results_async(execution, execution.run, LiveOutput)
    except KeyboardInterrupt:
        pass  # the run was stopped, which the summary shows
    except Exception:
        shell.showtraceback()
    finally:
        _background_tasks.discard(asyncio.current_task())


def _check_misspelling(word: str, rest: str) -> None:
    """Check that the first word is not a misspelt ``compare`` or ``scale``.

    Raises:
        OptionError: it is closer to one of them than to a flag.
    """
    names = [flag.name.lstrip("-") for flag in FLAGS]
    near = None if word.startswith("-") else closest_match(word, [*request.TABLES, *names])
    if near in request.TABLES and word not in names:
        what = f"There is no %%mgpu {word}"
        raise OptionError(format_message(what, instead=f"%%mgpu {near} {rest}".rstrip()))
