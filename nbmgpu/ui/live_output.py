"""Displays a run in its cell's output: rank 0's output, the panel, then the summary."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbmgpu.kernel.notebook_context import NotebookContext
from nbmgpu.report.kept_summary import summary_of
from nbmgpu.runs.events import Display, Hang
from nbmgpu.runs.hang_text import hang_notice
from nbmgpu.runs.run import Run

if TYPE_CHECKING:
    from .panel import RunPanel

UPDATE_BYTES = 1 << 16
"""Maximum bytes of output shown per update; the rest follows in the next updates."""

MAX_BYTES = 1 << 20
"""Maximum bytes of output shown of a run, besides the end of the log; the log file has the rest."""

TAIL_BYTES = 1 << 12
"""Bytes of the log's end that are always shown."""

MIN_CHUNK_BYTES = 256
"""Minimum bytes counted per write: each change between stdout and stderr costs a message."""


class LiveOutput:
    """Displays one run in the output of its ``%%mgpu`` cell."""

    def __init__(self, run: Run, context: NotebookContext) -> None:
        """Display ``run``: with a panel in Jupyter, as text elsewhere."""
        self.run = run
        self.in_jupyter = context.in_jupyter
        self.log = LogPrinter(run)
        self._panel: RunPanel | None = None
        self._handle: Any = None
        self._displays: dict[str, Any] = {}
        self._discarded = False

    def start(self) -> None:
        """Display the panel; its Stop button stops the run."""
        self.run.refresh()
        if not self.in_jupyter:
            for notice in self.run.view.notices.values():
                print(notice.text)
            return
        from IPython.display import display

        from .panel import RunPanel

        self._panel = RunPanel(self.run)
        self._panel.on_stop(self.run.stop)
        self._handle = display(self._panel, display_id=True, metadata=panel_metadata(self.run))

    def update(self) -> None:
        """Show new output of rank 0, prints and displays in order, and update the panel."""
        size = self.log.size()  # read first, so that the events of all these bytes are available
        for event in self.run.poll():
            if event.rank == 0 and isinstance(event, Display):
                self.log.show_until(event.offset)
                self._show(event)
            elif isinstance(event, Hang) and not (self.in_jupyter or event.stops):
                print("There is progress again." if event.over else hang_notice(event))
        self.log.show_until(size, UPDATE_BYTES)
        if self._panel is not None:
            self._panel.refresh()

    def discard(self) -> None:
        """Clear the output of the cell, which starts again, when there is new output."""
        self._discarded = True
        if self._panel is not None:
            from IPython.display import clear_output

            self._panel.close()
            clear_output(wait=True)

    def finish(self) -> None:
        """Show the remaining output, and replace the panel by a summary without a widget."""
        if self._discarded:
            return
        self.update()
        self.log.show_end()
        summary = summary_of(self.run)
        if self._handle is None:
            print(summary.text)
            return
        data = {"text/html": summary.html, "text/plain": summary.text}
        self._handle.update(data, raw=True)
        if self._panel is not None:
            self._panel.close()

    def _show(self, event: Display) -> None:
        from IPython.display import clear_output, display

        if event.action == "clear":
            clear_output(wait=True)
            if self._handle is not None and self._panel is not None:
                self._handle.display(self._panel, metadata=panel_metadata(self.run))
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


def panel_metadata(run: Run) -> dict[str, Any]:
    """Return the output metadata that identifies the panel of ``run``.

    A reloaded page does not receive the kernel's updates of its outputs. JupyterLab's plugin finds
    the panel by this metadata and adds the summary (labextension/src/lab/runoutputs.ts).
    """
    return {"nbmgpu": {"panel": run.id}}


class LogPrinter:
    """Prints rank 0's log as it grows, to the stream it was written to.

    The output per update is limited. Beyond a total limit only the end is shown, so that the front
    end stays responsive; the log file is complete.
    """

    def __init__(self, run: Run) -> None:
        """Start at the beginning of rank 0's log."""
        self._path = run.log_path(0)
        self._position = 0
        self._shown = 0
        self._stderr = run.view.ranks[0].log.stderr

    def size(self) -> int:
        """Return the size of the log in bytes."""
        return self._path.stat().st_size if self._path.exists() else 0

    def show_until(self, offset: int, at_most: int = MAX_BYTES) -> None:
        """Print up to ``offset``, within the limits."""
        limit = min(self._shown + at_most, MAX_BYTES)
        while self._position < offset and self._shown < limit:
            if not self._print(min(offset - self._position, UPDATE_BYTES), limit):
                return

    def show_end(self) -> None:
        """Print the remaining output, or only its end if the limit is exceeded."""
        size = self.size()
        self.show_until(size)
        left = size - self._position
        if left > TAIL_BYTES:
            print(f"\n... {left - TAIL_BYTES:,} more bytes of output in {self._path} ...\n")
            self._position = size - TAIL_BYTES
        self._print(size - self._position, self._shown + 2 * TAIL_BYTES)

    def _print(self, length: int, limit: int) -> int:
        """Print up to ``length`` bytes of complete characters; return their number."""
        if length <= 0:
            return 0
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = _complete_characters(file.read(length))
        begin = self._position
        for end, is_error in self._stderr.split(begin, begin + len(data)):
            chunk = data[self._position - begin : end - begin]
            stream = sys.stderr if is_error else sys.stdout
            stream.write(chunk.decode("utf-8", "replace"))
            stream.flush()  # keeps the order of stdout and stderr
            self._position += len(chunk)
            self._shown += max(len(chunk), MIN_CHUNK_BYTES)
            if self._shown >= limit:
                break
        return self._position - begin


def _complete_characters(data: bytes) -> bytes:
    """Remove an incomplete UTF-8 character from the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if need > back else data
        if byte < 0x80:
            return data
    return data
