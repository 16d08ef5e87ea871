"""The live panel of a run, in the output of its cell.

What it shows are the parts of ``nbmgpu.report.snapshot``, each a synced trait, so that a
reloaded page has all of it; ``labextension/src/view`` draws them.  Messages come back from the
browser: clicks on Stop, choices such as which log is open, requests for lines of a log and
for a stretch of a curve in more detail.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import anywidget
import traitlets

from nbmgpu.report.curves import CurveLine, CurveRequest, curve_detail
from nbmgpu.report.log_pages import LogPage, LogRequest
from nbmgpu.report.snapshot import Snapshot
from nbmgpu.runs.polling import PANEL
from nbmgpu.runs.run import Run

from .assets import script, style


class RunPanel(anywidget.AnyWidget):
    """Shows one run while it goes on.

    Feed it with ``refresh`` after each ``run.poll()``; replace it by
    ``nbmgpu.report.summary`` when the run is over, since a saved notebook keeps no widgets.
    """

    _esm = script("panel")
    _css = style("panel")

    about = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    notices: traitlets.List[str] = traitlets.List().tag(sync=True)
    failure = traitlets.Dict(allow_none=True, default_value=None).tag(sync=True)
    progress: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    curves = traitlets.Dict().tag(sync=True)
    throughput = traitlets.Dict().tag(sync=True)
    ranks: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    logs: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    choices = traitlets.Dict().tag(sync=True)

    def __init__(self, run: Run) -> None:
        """Show ``run`` as its view knows it now."""
        self._run = run
        self._snapshot = Snapshot(run)
        self._stop_callbacks: list[Callable[[bool], object]] = []
        self._rests_until = 0.0
        super().__init__(**self._snapshot.changed())
        self.on_msg(self._receive)

    def on_stop(self, callback: Callable[[bool], object]) -> None:
        """Call ``callback(force)`` when Stop is clicked: True once the run was asked already."""
        self._stop_callbacks.append(callback)

    def refresh(self, now: bool = False) -> None:
        """Send what has changed, if the last time is long enough ago; with ``now``, in any case.

        Never polls the run: its events belong to the caller.
        """
        if not (now or self._run.view.ended or time.monotonic() >= self._rests_until):
            return
        self._rests_until = time.monotonic() + PANEL.pause(self._run)
        with self.hold_sync():
            for name, value in self._snapshot.changed().items():
                setattr(self, name, value)

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
            case {"kind": "ask", "id": number, "curve": dict(request)}:
                self._answer(number, curve_detail(self._run.view, CurveRequest(**request)))

    def _answer(self, number: int, answer: LogPage | CurveLine | None) -> None:
        plain = dataclasses.asdict(answer) if answer else None
        self.send({"kind": "answer", "id": number, "answer": plain})

    def __repr__(self) -> str:
        """Say what it is where widgets cannot be shown."""
        return f"RunPanel of run {self._run.id}"
