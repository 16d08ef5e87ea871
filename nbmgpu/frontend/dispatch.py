"""What ``%%mgpu`` and ``%mgpu`` do once they are called: they read a line and call the library."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nbmgpu import comparison
from nbmgpu.cell.source import with_magic_line
from nbmgpu.comparison import ComparisonRunner, request
from nbmgpu.errors import OptionError, closest_match, format_message
from nbmgpu.kernel import executor
from nbmgpu.kernel.execution import Execution
from nbmgpu.kernel.interrupts import interrupts_to
from nbmgpu.kernel.notebook_context import NotebookContext
from nbmgpu.options import flags
from nbmgpu.options.run_options import RunOptions
from nbmgpu.runs.failure import plain
from nbmgpu.ui.live_output import LiveOutput

from .help import usage
from .tracebacks import plain_errors

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_watching: set[asyncio.Task[None] | None] = set()
"""Tasks that follow runs in the background: a loop keeps none alive by itself."""


def run_cell(shell: InteractiveShell, line: str, cell: str) -> Any:
    """Run ``cell`` as ``line`` asks, and block until it is over."""
    if _helped(line):
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
    """Run ``cell`` as ``line`` asks while the kernel's loop goes on."""
    if _helped(line):
        return None
    cell = with_magic_line(f"%%mgpu {line}", cell)
    with plain_errors(shell, cell):
        if runner := _runner(shell, line, cell):
            await comparison.execute_async(runner)
            return None
        execution = _execution(shell, line, cell)
        run = await executor.execute_async(execution, LiveOutput)
        if run is not None and execution.options.background:
            _watching.add(asyncio.ensure_future(_watch(shell, execution)))
    return execution.value


def run_line(shell: InteractiveShell, line: str) -> Any:
    """Do what the command at the beginning of ``line`` does with the rest of it."""
    if _helped(line):
        return None
    command, _, rest = line.strip().partition(" ")
    if command not in flags.COMMANDS:
        near = closest_match(command, flags.COMMANDS) or "runs"
        what = f"There is no %mgpu {command}" if command else "%mgpu needs a command"
        allowed, instead = f"Commands: {', '.join(flags.COMMANDS)}", f"%mgpu {near}"
        if command in request.TABLES:
            allowed = "It stands above the cell that it is about"
            instead = f"%%mgpu {line.strip()}"
        raise plain(OptionError(format_message(what, allowed, instead)))
    from . import commands  # the advisor comes with it

    with plain_errors(shell):
        return getattr(commands, command)(rest.strip())


async def attach_awaited(shell: InteractiveShell, line: str) -> None:
    """Attach to the run that ``line`` names while the kernel's loop goes on."""
    if _helped(line):
        return
    with plain_errors(shell):
        run, execution = executor.take_over(line.partition(" ")[2].strip())
        if execution is None:
            await executor.monitor_async(run, LiveOutput)
            return
        with interrupts_to(execution.interrupt):
            await executor.wait_for_results_async(execution, run, LiveOutput)


def _helped(line: str) -> bool:
    """Show what can be typed, if ``line`` asks for that."""
    text = usage(line)
    if text:
        print(text)
    return bool(text)


def _execution(shell: InteractiveShell, line: str, cell: str) -> Execution:
    return Execution(cell, shell.user_ns, RunOptions.parse(line), NotebookContext(shell))


def _runner(shell: InteractiveShell, line: str, cell: str) -> ComparisonRunner | None:
    """Return what a line that begins with ``compare`` or ``scale`` asks for, else nothing."""
    kind, _, rest = line.strip().partition(" ")
    if kind not in request.TABLES:
        _refuse_misspelt(kind, rest)
        return None
    return ComparisonRunner(request.parse(kind, rest), cell, shell.user_ns, NotebookContext(shell))


async def _watch(shell: InteractiveShell, execution: Execution) -> None:
    """Follow a run in the background; whatever it raises is shown where it began."""
    try:
        with plain_errors(shell, execution.source):
            await executor.wait_for_results_async(execution, execution.run, LiveOutput)
    except KeyboardInterrupt:
        pass  # it was stopped; the summary says so
    except Exception:
        shell.showtraceback()
    finally:
        _watching.discard(asyncio.current_task())


def _refuse_misspelt(word: str, rest: str) -> None:
    """Refuse a first word that is nearer to ``compare`` or ``scale`` than to a flag."""
    names = [flag.name.lstrip("-") for flag in flags.FLAGS]
    near = None if word.startswith("-") else closest_match(word, [*request.TABLES, *names])
    if near in request.TABLES and word not in names:
        what = f"There is no %%mgpu {word}"
        raise OptionError(format_message(what, instead=f"%%mgpu {near} {rest}".rstrip()))
