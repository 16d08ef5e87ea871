"""The IPython shell in which a rank runs its cell.

So that the cell means what it means in the notebook: magics, shell lines,
``display``, top-level ``await``, and the value of the last line.
"""

from __future__ import annotations

import gc
import json
import linecache
import signal
import symtable
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exception_only
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from nbmgpu.cell.cell import HISTORY
from nbmgpu.environment.headers import BundleHeader
from nbmgpu.errors import NbmgpuError
from nbmgpu.patches import PatchStack
from nbmgpu.runs.events import Display, EventWriter
from nbmgpu.serialization import VALUE

from .metrics import tqdm_progress
from .reporting.failures import CELL_FILE_MARK, hide_own_frames
from .reporting.recorder import Recorder
from .reporting.stdio import MarkedStderr, log_size
from .store.broadcast import broadcast_from_rank_0
from .training.step_limit import StepLimitReachedError


@dataclass(frozen=True)
class Outcome:
    """How a cell ended.

    ``names`` are bound in the namespace and may go back, ``deleted`` no longer are; ``kept`` are
    bound to what they were bound to before.  ``value`` is the last line's, if it had one.
    """

    error: BaseException | None
    traceback: list[str]
    value: Any
    has_value: bool
    names: list[str]
    deleted: list[str]
    kept: set[str]

    def values(self) -> dict[str, Any]:
        """Return the last line's value under the name by which it travels, or nothing."""
        return {VALUE: self.value} if self.has_value else {}


class _Publisher(DisplayPublisher):
    """Writes displays as events, with their place in the log."""

    events: EventWriter
    log: Path

    def publish(
        self, data: Any, metadata: Any = None, *args: Any, transient: Any = None,
        update: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        sys.stdout.flush()
        self.events.emit(
            Display,
            offset=log_size(self.log),
            action="update" if update else "show",
            data=_as_text(data),
            metadata=metadata or {},
            display_id=(transient or {}).get("display_id", ""),
        )

    def clear_output(self, wait: bool = False) -> None:
        self.events.emit(Display, offset=log_size(self.log), action="clear")


def _as_text(data: dict[str, Any]) -> dict[str, Any]:
    """Return a MIME bundle in which binary content is base64, as in a notebook file."""
    from base64 import b64encode

    def text(content: Any) -> Any:
        if isinstance(content, bytes):
            return b64encode(content).decode()
        return json.loads(json.dumps(content, default=_as_plain))

    return {kind: text(content) for kind, content in data.items()}


def _as_plain(number: Any) -> Any:
    """Return NumPy's numbers and arrays as Python's, of which alone JSON knows."""
    if hasattr(number, "tolist"):
        return number.tolist()
    raise TypeError(f"Object of type {type(number).__name__} is not JSON serializable")


class _NoPublisher(DisplayPublisher):
    """Of ranks other than 0: their displays would only repeat rank 0's."""

    def publish(self, *args: Any, **kwargs: Any) -> None:
        pass

    def clear_output(self, wait: bool = False) -> None:
        pass


class _Hook(DisplayHook):
    """Keeps the last line's value instead of printing it: the notebook will show it."""

    value: Any = None
    has_value = False
    silenced = False

    def __call__(self, result: Any = None) -> None:
        if result is not None and not self.silenced:
            self.value, self.has_value = result, True
            if self.exec_result is not None:
                self.exec_result.result = result


class RankShell(InteractiveShell):
    """A shell without a terminal, history or prompt."""

    displayhook_class = _Hook
    displayhook: _Hook
    last_traceback: list[str]

    def init_io(self) -> None:
        """Leave the streams alone."""

    def init_virtualenv(self) -> None:
        """Leave the module path as the kernel has sent it, whatever environment is activated.

        IPython would warn in every rank's log where that is not the kernel's own.
        """

    @contextmanager
    def _tee(self, channel: str) -> Iterator[None]:
        """Keep no copy of what is written: IPython's is for its history, which a rank has not.

        It takes longer than writing.
        """
        yield

    def enable_gui(self, gui: str | None = None) -> None:
        """Start no event loop: a rank's figures are inline, as the kernel's environment says."""

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        """Format the exception, except for one that only ends the cell: nobody will read it."""
        error = sys.exc_info()[1]
        if isinstance(error, KeyboardInterrupt | StepLimitReachedError):
            return
        if isinstance(error, NbmgpuError):
            hide_own_frames(error)  # its message says it all
        with undisturbed():
            super().showtraceback(*args, **kwargs)

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        self.last_traceback = [str(line) for line in stb]

    def take_sources(self, header: BundleHeader) -> None:
        """Know the source of the notebook's earlier cells, for tracebacks and ``inspect``."""
        for filename, (source, number) in header.sources.items():
            linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
            if number is not None:
                self.compile._filename_map[filename] = number
        self.execution_count = header.execution_count

    def share_commands(self, rank: int, done: Callable[[], None]) -> None:
        """Run shell lines on rank 0 alone, and give their results to all ranks.

        Each rank calls what is ``done`` after one, which may have written the cell's files.
        """
        shell: Any = self
        run, read = shell.system, shell.getoutput

        def system(command: str) -> None:
            if rank == 0:
                run(command)
            self.user_ns["_exit_code"] = broadcast_from_rank_0(self.user_ns.get("_exit_code"))
            done()

        def getoutput(command: str, *args: Any, **kwargs: Any) -> Any:
            output = broadcast_from_rank_0(read(command, *args, **kwargs) if rank == 0 else None)
            done()
            return output

        shell.system, shell.getoutput = system, getoutput

    def run(self, cell: str) -> Outcome:
        """Run ``cell`` and tell how it ended."""
        before = dict(self.user_ns)
        self.last_traceback = []
        self.displayhook.silenced = DisplayHook.semicolon_at_end_of_expression(cell)
        run: Any = self.run_cell
        result = run(cell, store_history=False, silent=False)
        ignore_interrupts()  # what has been done shall come back
        error = result.error_before_exec or result.error_in_exec
        if isinstance(error, StepLimitReachedError):
            error = None
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError as unwritten:  # a full disk: what was printed last is lost
                if error is None:
                    error, self.last_traceback = unwritten, format_exception_only(unwritten)
        after = {name for name in self.user_ns if not self._is_own(name)}
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
        """Return the names that the cell assigns, be it what they stood for already."""
        transform: Any = self.transform_cell
        try:
            table = symtable.symtable(transform(cell), "<cell>", "exec")
        except SyntaxError:
            return set()
        return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}

    def _is_own(self, name: str) -> bool:
        own = name in self.user_ns_hidden or name in OWN_NAMES or name.startswith("__")
        return own or HISTORY.fullmatch(name) is not None


INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def ignore_interrupts() -> list[Any]:
    """Ignore the signals that interrupt a cell; return what they have done so far."""
    return [signal.signal(sig, signal.SIG_IGN) for sig in INTERRUPTS]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore the signals that interrupt a cell while an exception is on its way out anyway."""
    before = ignore_interrupts()
    try:
        yield
    finally:
        for sig, handler in zip(INTERRUPTS, before, strict=True):
            signal.signal(sig, handler)


def pass_over_interrupts(unraisable: sys.UnraisableHookArgs) -> None:
    """Say nothing of an interrupt that fell into a finalizer: the launcher sends another."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


OWN_NAMES = {"In", "Out", "get_ipython", "exit", "quit", "open"}


def make_shell(events: EventWriter, recorder: Recorder, log: Path, rank: int) -> RankShell:
    """Make the rank's one shell; its namespace is the rank's ``__main__``."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "neutral"  # as in the kernel: readable on light and dark
    config.InteractiveShell.autoawait = True
    module = types.ModuleType("__main__")
    shell = RankShell.instance(config=config, user_module=module, user_ns=module.__dict__)
    del shell.user_ns["open"]  # IPython's own would pass by what the rank does to files
    module.__dict__["__getattr__"] = _came_along
    sys.modules["__main__"] = module
    make: Any = _NoPublisher if rank else _Publisher
    publisher = make(parent=shell)
    publisher.events, publisher.log = events, log
    shell.display_pub = publisher
    PatchStack().wrap(
        "IPython.core.compilerop.CachingCompiler.get_code_name",
        lambda name: lambda *args: f"<{CELL_FILE_MARK}-{name(*args)}>",
        shell.compile,
    )
    sys.stderr = MarkedStderr(log, recorder.stderr)
    sys.unraisablehook = pass_over_interrupts
    tqdm_progress.replace_widgets()
    return shell


def _came_along(name: str) -> Any:
    """Return a class or function of the notebook that came with an object: pickles name it.

    The cell does not, or it would be in the namespace.
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
