"""The IPython shell in which a rank runs its cell.

Magics, shell commands, ``display``, top-level ``await`` and the value of the last line work as in
the notebook.
"""

from __future__ import annotations

import gc
import linecache
import symtable
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import format_exception, format_exception_only
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from nbmgpu.cell.cell import HISTORY
from nbmgpu.environment.headers import BundleHeader
from nbmgpu.errors import NbmgpuError
from nbmgpu.patches import PatchStack
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.stacks import CELL_FILE_MARK
from nbmgpu.serialization import VALUE

from .interrupts import ignore_interrupts, interrupts_ignored, report_unraisable
from .metrics import tqdm_progress
from .reporting.failures import hide_own_frames
from .reporting.recorder import Recorder
from .reporting.stdio import MarkedStderr
from .shell_display import EventPublisher, LastValueHook, NullPublisher, ends_with_semicolon
from .store.broadcast import broadcast_from_rank_0
from .training.step_limit import StepLimitReachedError


@dataclass(frozen=True)
class Outcome:
    """How a cell ended.

    Attributes:
        error: the exception that ended it; None if there was none.
        traceback: lines of its formatted traceback.
        value, has_value: the value of the last line, and whether it had one.
        names: bound in the namespace, so that they may be returned.
        deleted: bound before the cell, but not after it.
        kept: bound to the same object as before, and not assigned.
    """

    error: BaseException | None
    traceback: list[str]
    value: Any
    has_value: bool
    names: list[str]
    deleted: list[str]
    kept: set[str]

    def failed_by(self, error: BaseException) -> Outcome:
        """Return that ``error`` ended the cell, after its last line."""
        return replace(self, error=error, traceback=format_exception(error))

    def values(self) -> dict[str, Any]:
        """Return the value of the last line, under its name in a bundle; empty without a value."""
        return {VALUE: self.value} if self.has_value else {}


class RankShell(InteractiveShell):
    """A shell without a terminal, history or prompt."""

    displayhook_class = LastValueHook
    displayhook: LastValueHook
    last_traceback: list[str]

    def init_io(self) -> None:
        """Leave the streams alone."""

    def init_virtualenv(self) -> None:
        """Leave ``sys.path`` as the kernel has sent it, whatever environment is activated.

        IPython would warn in every rank's log where that is not the kernel's own environment.
        """

    @contextmanager
    def _tee(self, channel: str) -> Iterator[None]:
        """Keep no copy of the output: IPython needs it for its history, which a rank does not have.

        The copy takes longer than writing.
        """
        yield

    def enable_gui(self, gui: str | None = None) -> None:
        """Start no event loop: figures are inline, as the kernel's environment specifies."""

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        """Format the exception, unless it only ends the cell and its traceback is not shown."""
        error = sys.exc_info()[1]
        if isinstance(error, KeyboardInterrupt | StepLimitReachedError):
            return
        if isinstance(error, NbmgpuError):
            hide_own_frames(error)  # its message is enough
        with interrupts_ignored():
            super().showtraceback(*args, **kwargs)

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        self.last_traceback = [str(line) for line in stb]

    def register_sources(self, header: BundleHeader) -> None:
        """Register the source of the notebook's earlier cells, for tracebacks and ``inspect``."""
        for filename, (source, number) in header.sources.items():
            linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
            if number is not None:
                self.compile._filename_map[filename] = number
        self.execution_count = header.execution_count

    def begin_run(self, events: EventWriter, recorder: Recorder, log: Path, rank: int) -> None:
        """Show from now on in ``events`` and ``log`` what the cell displays."""
        make_publisher: Any = NullPublisher if rank else EventPublisher
        publisher = make_publisher(parent=self)
        publisher.events, publisher.log = events, log
        self.display_pub = publisher
        self.displayhook.forget_value()
        sys.stderr = MarkedStderr(log, recorder.stderr)

    def run_commands_on_rank_0(self, rank: int, after_each: Callable[[], None]) -> None:
        """Run shell commands on rank 0 only, and broadcast their results.

        Args:
            rank: of this process.
            after_each: called on each rank after a command, which may have written files.
        """
        shell: Any = self
        run, read = type(self).system.__get__(self), type(self).getoutput.__get__(self)

        def system(command: str) -> None:
            if rank == 0:
                run(command)
            self.user_ns["_exit_code"] = broadcast_from_rank_0(self.user_ns.get("_exit_code"))
            after_each()

        def getoutput(command: str, *args: Any, **kwargs: Any) -> Any:
            output = broadcast_from_rank_0(read(command, *args, **kwargs) if rank == 0 else None)
            after_each()
            return output

        shell.system, shell.getoutput = system, getoutput

    def run(self, cell: str) -> Outcome:
        """Run ``cell`` and return how it ended."""
        # IPython's own ``open``, also of functions of earlier cells, bypasses the patch.
        if getattr(self.user_ns.get("open"), "__module__", "") in ("io", "_io"):
            del self.user_ns["open"]
        before = dict(self.user_ns)
        self.last_traceback = []
        transform: Any = self.transform_cell
        self.displayhook.silenced = ends_with_semicolon(transform(cell))
        run: Any = self.run_cell
        result = run(cell, store_history=False, silent=False)
        ignore_interrupts()  # so that the results are returned
        error = result.error_before_exec or result.error_in_exec
        if isinstance(error, StepLimitReachedError):
            error = None
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError as unwritten:  # a stream of the cell's own
                if error is None:
                    error, self.last_traceback = unwritten, format_exception_only(unwritten)
        after = {name for name in self.user_ns if not self.is_own(name)}
        return Outcome(
            error,
            self.last_traceback,
            self.displayhook.value,
            self.displayhook.has_value,
            sorted(after),
            [name for name in before if name not in self.user_ns],
            {n for n in after - self._assigned(cell) if before.get(n, self) is self.user_ns[n]},
        )

    def _assigned(self, cell: str) -> set[str]:
        """Return the names that the cell assigns, also those whose object does not change."""
        transform: Any = self.transform_cell
        try:
            table = symtable.symtable(transform(cell), "<cell>", "exec")
        except SyntaxError:
            return set()
        return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}

    def is_own(self, name: str) -> bool:
        """Return whether a name in the namespace is the shell's, and not the cell's."""
        own = name in self.user_ns_hidden or name in OWN_NAMES or name.startswith("__")
        return own or HISTORY.fullmatch(name) is not None


OWN_NAMES = {"In", "Out", "get_ipython", "exit", "quit", "open"}


def make_shell(events: EventWriter, recorder: Recorder, log: Path, rank: int) -> RankShell:
    """Create the shell of the rank; its namespace is that of ``__main__``."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "neutral"  # as in the kernel: readable on light and dark
    config.InteractiveShell.autoawait = True
    module = types.ModuleType("__main__")
    shell = RankShell.instance(config=config, user_module=module, user_ns=module.__dict__)
    module.__dict__["__getattr__"] = _find_unpickled
    sys.modules["__main__"] = module
    PatchStack().wrap(
        "IPython.core.compilerop.CachingCompiler.get_code_name",
        lambda name: lambda *args: f"<{CELL_FILE_MARK}-{name(*args)}>",
        shell.compile,
    )
    shell.begin_run(events, recorder, log, rank)
    sys.unraisablehook = report_unraisable
    tqdm_progress.replace_widgets()
    return shell


def _find_unpickled(name: str) -> Any:
    """Return a class or function of the notebook that was unpickled with an object, by name.

    Pickles refer to it by name.  The cell does not, or it would be in the namespace.
    """
    for each in [] if name.startswith("__") else gc.get_objects():
        kind = type(each)
        if (
            (kind is types.FunctionType or issubclass(kind, type))
            and each.__module__ == "__main__"
            and each.__qualname__ == name
        ):
            return each
    raise AttributeError(f"module '__main__' has no attribute {name!r}")
