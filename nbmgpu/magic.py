"""``%%mgpu`` and ``%mgpu``: they read a line and call the library.

In a kernel ``%%mgpu`` is awaited, so that the kernel's loop stays free during a
run and the panel's Stop button works.  Under another cell magic (``%%time``,
``%%capture``) and in a plain terminal the same run blocks; Ctrl-C works in both.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from . import api, completion, flags
from .errors import NbmgpuError, OptionError, closest, compose
from .failure import plain
from .interrupts import interrupts_to
from .kernel import POLL, Execution
from .launch.local import server
from .options import RunOptions
from .surroundings import Surroundings

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

CALL = "get_ipython().run_cell_magic('mgpu'"
AWAITED_CALL = "await get_ipython().run_cell_magic('mgpu_awaited'"


def register(shell: InteractiveShell) -> None:
    """Add the magics, Tab completion and the transformation to ``shell``; warm the launcher."""
    shell.register_magics(MgpuMagics)
    if hasattr(shell, "kernel") and await_magic not in shell.input_transformers_post:
        shell.input_transformers_post.append(await_magic)
    completion.register(shell)
    server()


def unregister(shell: InteractiveShell) -> None:
    """Undo ``register``."""
    if await_magic in shell.input_transformers_post:
        shell.input_transformers_post.remove(await_magic)
    completion.unregister(shell)


def await_magic(lines: list[str]) -> list[str]:
    """Turn a call of ``%%mgpu`` into an awaited one, where awaiting is possible.

    A magic that runs the rest of its cell itself (``%%time``) cannot await.
    """
    if _inside_a_magic():
        return lines
    return [line.replace(CALL, AWAITED_CALL, 1) if line.startswith(CALL) else line for line in lines]  # fmt: skip


def _inside_a_magic() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code.co_name in ("run_cell_magic", "run_line_magic"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def plain_errors() -> Iterator[None]:
    """Let errors that nbmgpu itself raises be shown without nbmgpu's own frames."""
    try:
        yield
    except NbmgpuError as error:
        raise error if hasattr(error, "_render_traceback_") else plain(error) from None


@magics_class
class MgpuMagics(Magics):  # type: ignore[misc]
    """The magics of a shell."""

    _watching: ClassVar[set[asyncio.Task[None] | None]] = set()

    def _execution(self, line: str, cell: str) -> Execution:
        options = RunOptions.parse(line)
        return Execution(cell, self.shell.user_ns, options, Surroundings(self.shell))

    @cell_magic
    def mgpu(self, line: str, cell: str) -> Any:
        """Run the cell on several ranks."""
        with plain_errors():
            execution = self._execution(line, cell)
            api.conduct(execution)
        return execution.value

    @cell_magic
    async def mgpu_awaited(self, line: str, cell: str) -> Any:
        """Run the cell on several ranks while the kernel's loop goes on."""
        with plain_errors():
            execution = self._execution(line, cell)
            if execution.options.dry_run or execution.options.background:
                if api.conduct(execution) is not None:
                    self._watching.add(asyncio.ensure_future(self._watch(execution)))
                return None
            api.refuse_inside_a_rank()
            execution.prepare()
            with interrupts_to(execution.interrupt):
                api.begin(execution)
                await follow_awaited(execution)
        return execution.value

    async def _watch(self, execution: Execution) -> None:
        """Follow a run in the background; whatever it raises is shown where it began."""
        try:
            await follow_awaited(execution)
        except KeyboardInterrupt:
            pass  # it was stopped; the summary says so
        except Exception:
            self.shell.showtraceback()
        finally:
            self._watching.discard(asyncio.current_task())

    @line_magic("mgpu")
    def mgpu_line(self, line: str) -> Any:
        """Look after runs: runs, show, attach, stop, info."""
        command, _, rest = line.strip().partition(" ")
        if command not in flags.COMMANDS:
            near = closest(command, flags.COMMANDS) or "runs"
            what = f"There is no %mgpu {command}" if command else "%mgpu needs a command"
            allowed = f"Commands: {', '.join(flags.COMMANDS)}"
            raise plain(OptionError(compose(what, allowed, f"%mgpu {near}")))
        from . import commands

        with plain_errors():
            return getattr(commands, command)(rest.strip())


async def follow_awaited(execution: Execution) -> None:
    """Do what ``api.follow`` does, awaiting between looks at the run."""
    with api.showing(execution, execution.run) as output:
        while not execution.over:
            output.take()
            await asyncio.sleep(POLL)
        output.take()
        if not execution.taken_over:  # `%mgpu attach` may have done the rest meanwhile
            execution.finish()
