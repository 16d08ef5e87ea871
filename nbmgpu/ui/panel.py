"""The live panel of a run, in the output of its cell.

Each part of ``nbmgpu.report.snapshot`` is a synced trait ``part_<name>``, so that only changed
parts are sent and a reloaded page is complete; ``labextension/src/view`` draws them. The browser
sends messages: clicks on Stop, choices such as the open log, and requests for log lines, for
ranks of a node, for ranges of a curve at a higher resolution, for rows of the metrics as CSV and
for parts of traces.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anywidget
import traitlets

from nbmgpu.report.curves import CurveLine, CurveRequest, curve_detail
from nbmgpu.report.log_pages import LogPage, LogRequest
from nbmgpu.report.metrics_csv import CsvPage, CsvRequest, csv_page
from nbmgpu.report.node_rows import RankRequest, rows_on_nodes
from nbmgpu.report.rank_rows import RankRow
from nbmgpu.report.snapshot import Snapshot, plain_data
from nbmgpu.report.stopping import stopping
from nbmgpu.report.trace_parts import TracePart, TraceRequest, trace_part
from nbmgpu.runs.polling import PANEL
from nbmgpu.runs.run import Run

from .assets import script, style


class RunPanel(anywidget.AnyWidget):
    """Shows one run while it is in progress.

    Call ``refresh`` after each ``run.poll()``. Replace it by ``nbmgpu.report.summary`` when the run
    is over, because saved notebooks do not contain widgets.
    """

    _esm = script("panel")
    _css = style("panel")

    choices = traitlets.Dict().tag(sync=True)

    def __init__(self, run: Run) -> None:
        """Show the current state of ``run``."""
        self._run = run
        self._snapshot = Snapshot(run)
        self._stop_callbacks: list[Callable[[bool], object]] = []
        self._next_refresh = 0.0
        parts = self._snapshot.changed()
        self.add_traits(
            **{trait_name(name): traitlets.Any(part).tag(sync=True) for name, part in parts.items()}
        )
        super().__init__()
        self.on_msg(self._receive)

    def on_stop(self, callback: Callable[[bool], object]) -> None:
        """Call ``callback(force)`` when Stop is clicked; ``force`` from the second click."""
        self._stop_callbacks.append(callback)

    def refresh(self, now: bool = False) -> None:
        """Send changed parts, if the update interval has passed or ``now`` is set.

        Does not poll the run; the caller handles its events.
        """
        if not (now or self._run.view.ended or time.monotonic() >= self._next_refresh):
            return
        self._next_refresh = time.monotonic() + PANEL.pause(self._run)
        with self.hold_sync():
            for name, value in self._snapshot.changed().items():
                setattr(self, trait_name(name), value)

    def _receive(self, _widget: object, message: dict[str, Any], _buffers: object) -> None:
        match message:
            case {"kind": "stop"} if not self._run.view.ended:
                for callback in self._stop_callbacks:
                    callback(bool(message.get("force")))
                self.refresh(now=True)
            case {"kind": "choose", "key": str(key), "value": value}:
                self.choices = {**self.choices, key: value}
            case {"kind": "ask", "id": number, "logs": dict(request)}:
                self._answer(number, self._snapshot.logs.page(LogRequest(**request)))
            case {"kind": "ask", "id": number, "ranks": dict(request)}:
                stop = bool(stopping(self._run, self._run.view.state))
                found = rows_on_nodes(self._run, RankRequest(**request), time.time(), stop)
                self._answer(number, found)
            case {"kind": "ask", "id": number, "curve": dict(request)}:
                self._answer(number, curve_detail(self._run.view, CurveRequest(**request)))
            case {"kind": "ask", "id": number, "csv": dict(request)}:
                self._answer(number, csv_page(self._run, CsvRequest(**request)))
            case {"kind": "ask", "id": number, "trace": dict(request)}:
                self._answer(number, trace_part(self._run, TraceRequest(**request)))

    def _answer(
        self,
        number: int,
        answer: LogPage | CurveLine | CsvPage | TracePart | list[RankRow] | None,
    ) -> None:
        self.send({"kind": "answer", "id": number, "answer": plain_data(answer)})

    def __repr__(self) -> str:
        """Return a text for front ends without widgets."""
        return f"RunPanel of run {self._run.id}"


def trait_name(part: str) -> str:
    """Return the name of the trait of a part; the prefix avoids the names of other traits."""
    return f"part_{part}"
