"""A run in the output of its cell, as it happens: rank 0's output, the panel, the summary."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbmgpu.kernel.notebook_context import NotebookContext
from nbmgpu.report.summary import summary_html, summary_text
from nbmgpu.runs.events import Display
from nbmgpu.runs.run import Run

if TYPE_CHECKING:
    from .panel import RunPanel

PER_TURN = 1 << 16
"""Bytes of output shown at most per turn; the rest follows in the next turns."""

IN_ALL = 1 << 20
"""Bytes shown at most of a run; what is beyond stays in the log file, but for its end."""

END = 1 << 12
"""Bytes of the log's end that are shown in any case."""

PIECE = 256
"""Bytes that a piece counts for at least: between stdout and stderr lies a message each."""


class LiveOutput:
    """Shows one run where the call of ``%%mgpu`` stands."""

    def __init__(self, run: Run, surroundings: NotebookContext) -> None:
        """Show ``run``: with a panel in Jupyter, as text elsewhere."""
        self.run = run
        self.in_jupyter = surroundings.in_jupyter
        self.log = LogPrinter(run)
        self._panel: RunPanel | None = None
        self._handle: Any = None
        self._displays: dict[str, Any] = {}

    def start(self) -> None:
        """Put the panel up; its Stop button stops the run."""
        self.run.refresh()
        if not self.in_jupyter:
            for notice in self.run.view.notices.values():
                print(notice.text)
            return
        from IPython.display import display

        from .panel import RunPanel

        self._panel = RunPanel(self.run)
        self._panel.on_stop(self.run.stop)
        self._handle = display(self._panel, display_id=True, metadata=panel_mark(self.run))

    def update(self) -> None:
        """Show what is new: rank 0's displays in their place among its prints, the panel."""
        size = self.log.size()  # measured first: the events of all bytes before are there then
        for event in self.run.poll():
            if event.rank == 0 and isinstance(event, Display):
                self.log.show_until(event.offset)
                self._show(event)
        self.log.show_until(size, PER_TURN)
        if self._panel is not None:
            self._panel.refresh()

    def finish(self) -> None:
        """Show the rest, and leave a summary that needs no widget."""
        self.update()
        self.log.show_end()
        if self._handle is None:
            print(summary_text(self.run))
            return
        data = {"text/html": summary_html(self.run), "text/plain": summary_text(self.run)}
        self._handle.update(data, raw=True)
        if self._panel is not None:
            self._panel.close()

    def _show(self, event: Display) -> None:
        from IPython.display import clear_output, display

        if event.action == "clear":
            clear_output(wait=True)
            if self._handle is not None and self._panel is not None:
                self._handle.display(self._panel, metadata=panel_mark(self.run))
            return
        name = f"{self.run.id}-{event.display_id}" if event.display_id else None
        known = name in self._displays if name else False
        if event.action == "update" and not known:
            return
        if name is None:
            display(event.data, metadata=event.metadata, raw=True)
        elif known:
            self._displays[name].update(event.data, metadata=event.metadata, raw=True)
        else:
            self._displays[name] = display(
                event.data, metadata=event.metadata, raw=True, display_id=name
            )


def panel_mark(run: Run) -> dict[str, Any]:
    """Return what marks an output as the panel of ``run``.

    A page that was loaded again hears nothing of what this kernel does to its outputs; JupyterLab's
    plugin finds the panel by this and puts the summary there (labextension/src/lab/runoutputs.ts).
    """
    return {"nbmgpu": {"panel": run.id}}


class LogPrinter:
    """Prints rank 0's log as it grows, on the stream it was written to.

    A flood is let through a little per turn, and beyond a limit only its end is
    shown, so that the front end stays alive; the file has everything.
    """

    def __init__(self, run: Run) -> None:
        """Print the log of rank 0 of ``run``."""
        self._path = run.log_path(0)
        self._position = 0
        self._shown = 0
        self._stderr = run.view.ranks[0].stderr

    def size(self) -> int:
        """Return how much has been logged so far."""
        return self._path.stat().st_size if self._path.exists() else 0

    def show_until(self, offset: int, at_most: int = IN_ALL) -> None:
        """Print what lies before ``offset``, within the limits."""
        limit = min(self._shown + at_most, IN_ALL)
        while self._position < offset and self._shown < limit:
            if not self._print(min(offset - self._position, PER_TURN), limit):
                return

    def show_end(self) -> None:
        """Print all that is left, or its end where the limit is passed."""
        size = self.size()
        self.show_until(size)
        left = size - self._position
        if left > END:
            print(f"\n... {left - END:,} bytes of output more in {self._path} ...\n")
            self._position = size - END
        self._print(size - self._position, self._shown + 2 * END)

    def _print(self, length: int, limit: int) -> int:
        """Print up to ``length`` bytes, whole characters; return how many."""
        if length <= 0:
            return 0
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = _whole(file.read(length))
        begin = self._position
        for end, is_error in self._stderr.split(begin, begin + len(data)):
            piece = data[self._position - begin : end - begin]
            stream = sys.stderr if is_error else sys.stdout
            stream.write(piece.decode("utf-8", "replace"))
            stream.flush()  # the two streams are in order only if each is sent at once
            self._position += len(piece)
            self._shown += max(len(piece), PIECE)
            if self._shown >= limit:
                break
        return self._position - begin


def _whole(data: bytes) -> bytes:
    """Cut off a character that is not complete yet."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if need > back else data
        if byte < 0x80:
            return data
    return data
