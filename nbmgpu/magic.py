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

from . import api, comparison, completion, flags
from .comparison import Contest, request
from .errors import CellError, NbmgpuError, OptionError, closest, compose
from .failure import plain
from .interrupts import interrupts_to
from .kernel import POLL, Execution
from .launch.local import server
from .options import RunOptions
from .run import Run
from .surroundings import Surroundings

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

AWAITED = {
    "get_ipython().run_cell_magic('mgpu'": "await get_ipython().run_cell_magic('mgpu_awaited'",
    "get_ipython().run_line_magic('mgpu', 'attach": (
        "await get_ipython().run_line_magic('mgpu_awaited', 'attach"
    ),
}
"""Calls that IPython makes of a cell, and what to make of them where awaiting is possible."""


def register(shell: InteractiveShell) -> None:
    """Add the magics, Tab completion and the transformation to ``shell``; warm the launcher."""
    shell.register_magics(MgpuMagics)
    if hasattr(shell, "kernel") and await_magic not in shell.input_transformers_post:
        shell.input_transformers_post.append(await_magic)
    completion.register(shell)
    shell.events.register("post_run_cell", preload)
    server()


def unregister(shell: InteractiveShell) -> None:
    """Undo ``register``."""
    if await_magic in shell.input_transformers_post:
        shell.input_transformers_post.remove(await_magic)
    completion.unregister(shell)
    shell.events.unregister("post_run_cell", preload)


def preload(*_: object) -> None:
    """Let ranks have what the cell before has imported."""
    server().preload()


def await_magic(lines: list[str]) -> list[str]:
    """Turn calls of the magics into awaited ones, where awaiting is possible.

    A magic that runs the rest of its cell itself (``%%time``) cannot await.
    """
    return lines if _inside_a_magic() else [_awaited(line) for line in lines]


def _awaited(line: str) -> str:
    if line.rstrip().endswith(", '')"):
        return line  # without a body it is refused, by the name that was typed
    for call, awaited in AWAITED.items():
        if line.startswith(call):
            return awaited + line[len(call) :]
    return line


def _inside_a_magic() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code.co_name in ("run_cell_magic", "run_line_magic"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def plain_errors(shell: InteractiveShell, cell: str = "") -> Iterator[None]:
    """Let errors of nbmgpu itself, and syntax errors of ``cell``, be shown without its frames."""
    try:
        yield
    except NbmgpuError as error:
        raise error if hasattr(error, "_render_traceback_") else plain(error) from None
    except SyntaxError as error:
        error.filename = shell.compile.cache(cell, Surroundings(shell).cell_number)
        shown = shell.SyntaxTB.structured_traceback(type(error), error)
        raise CellSyntaxError(shown) from None


class CellSyntaxError(CellError):
    """A syntax error of the cell as IPython shows one.

    IPython has no way to show a real one without the frames that it came through.
    """

    def __init__(self, shown: list[str]) -> None:
        """Be shown as the lines ``shown``."""
        super().__init__(shown[-1].strip())
        self._shown = shown

    def _render_traceback_(self) -> list[str]:
        return self._shown


CellSyntaxError.__name__ = "SyntaxError"


def _refuse_misspelt(word: str, rest: str) -> None:
    """Refuse a first word that is nearer to ``compare`` or ``scale`` than to a flag."""
    names = [flag.name.lstrip("-") for flag in flags.FLAGS]
    near = None if word.startswith("-") else closest(word, [*request.TABLES, *names])
    if near in request.TABLES and word not in names:
        what = f"There is no %%mgpu {word}"
        raise OptionError(compose(what, instead=f"%%mgpu {near} {rest}".rstrip()))


@magics_class
class MgpuMagics(Magics):
    """The magics of a shell."""

    _watching: ClassVar[set[asyncio.Task[None] | None]] = set()

    @property
    def _shell(self) -> InteractiveShell:
        assert self.shell is not None
        return self.shell

    def _execution(self, line: str, cell: str) -> Execution:
        options = RunOptions.parse(line)
        return Execution(cell, self._shell.user_ns, options, Surroundings(self._shell))

    def _contest(self, line: str, cell: str) -> Contest | None:
        """Return what a line that begins with ``compare`` or ``scale`` asks for, else nothing."""
        kind, _, rest = line.strip().partition(" ")
        if kind not in request.TABLES:
            _refuse_misspelt(kind, rest)
            return None
        asked = request.parse(kind, rest)
        return Contest(asked, cell, self._shell.user_ns, Surroundings(self._shell))

    @cell_magic
    def mgpu(self, line: str, cell: str) -> Any:
        """Run the cell on several ranks."""
        with plain_errors(self._shell, cell):
            if contest := self._contest(line, cell):
                comparison.conduct(contest)
                return None
            execution = self._execution(line, cell)
            api.conduct(execution)
        return execution.value

    @cell_magic
    async def mgpu_awaited(self, line: str, cell: str) -> Any:
        """Run the cell on several ranks while the kernel's loop goes on."""
        with plain_errors(self._shell, cell):
            if contest := self._contest(line, cell):
                await contend_awaited(contest)
                return None
            execution = self._execution(line, cell)
            if execution.options.dry_run or execution.options.background:
                if api.conduct(execution) is not None:
                    self._watching.add(asyncio.ensure_future(self._watch(execution)))
                return None
            api.refuse_inside_a_rank()
            execution.prepare()
            with interrupts_to(execution.interrupt):
                api.begin(execution)
                await follow_awaited(execution, execution.run)
        return execution.value

    async def _watch(self, execution: Execution) -> None:
        """Follow a run in the background; whatever it raises is shown where it began."""
        try:
            await follow_awaited(execution, execution.run)
        except KeyboardInterrupt:
            pass  # it was stopped; the summary says so
        except Exception:
            self._shell.showtraceback()
        finally:
            self._watching.discard(asyncio.current_task())

    @line_magic("mgpu")  # type: ignore[arg-type]
    def mgpu_line(self, line: str) -> Any:
        """Look after runs: runs, show, attach, stop, info; and advise: advise, pick."""
        command, _, rest = line.strip().partition(" ")
        if command not in flags.COMMANDS:
            near = closest(command, flags.COMMANDS) or "runs"
            what = f"There is no %mgpu {command}" if command else "%mgpu needs a command"
            allowed, instead = f"Commands: {', '.join(flags.COMMANDS)}", f"%mgpu {near}"
            if command in request.TABLES:
                allowed = "It stands above the cell that it is about"
                instead = f"%%mgpu {line.strip()}"
            raise plain(OptionError(compose(what, allowed, instead)))
        from . import commands

        with plain_errors(self._shell):
            return getattr(commands, command)(rest.strip())

    @line_magic("mgpu_awaited")  # type: ignore[arg-type]
    async def mgpu_line_awaited(self, line: str) -> None:
        """Attach to a run while the kernel's loop goes on."""
        with plain_errors(self._shell):
            run, execution = api.take_over(line.partition(" ")[2].strip())
            if execution is None:
                await watch_awaited(run)
                return
            with interrupts_to(execution.interrupt):
                await follow_awaited(execution, run)


async def follow_awaited(execution: Execution, run: Run) -> None:
    """Do what ``api.follow`` does, awaiting between looks at the run."""
    with api.showing(execution, run) as output:
        while not execution.over:
            output.take()
            await asyncio.sleep(POLL)
        output.take()
        if run is not execution.run or not execution.taken_over:
            execution.finish()


async def contend_awaited(contest: Contest) -> None:
    """Do what ``comparison.conduct`` does, awaiting between looks at the runs."""
    with comparison.showing(contest) as output:
        for _ in contest.course():
            output.take()
            await asyncio.sleep(POLL)


async def watch_awaited(run: Run) -> None:
    """Show a run of another process to its end."""
    with api.shown(run, Surroundings.current()) as output:
        while not run.over:
            output.take()
            await asyncio.sleep(POLL)
