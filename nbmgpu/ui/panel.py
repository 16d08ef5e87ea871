"""The live panel of a run, in the output of its cell.

Everything it shows is in synced traits, so that a reloaded page has all of it;
``panel.js`` draws them.  Only two things come back from the browser: the rank
whose log is open (a trait), and clicks on Stop (messages).
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets

from nbmgpu.run import STOP_FILE, Run

from . import content

POINTS = 1000
"""The most points of a curve that travel to the browser."""

ALL_POINTS = 8000
"""The most points of all curves together."""

CURVES = 24
"""The most curves shown; the rest is in ``Run.metrics``."""

HEAVY_INTERVAL = 0.25
"""Seconds between two updates of curves and logs; state and progress know no such rest."""

LOG_LINES = 200
LOG_BYTES = 1 << 16

NO_RANK = -1
"""The value of ``selected`` while no log is open."""


class RunPanel(anywidget.AnyWidget):
    """Shows one run while it goes on.

    Feed it with ``refresh`` after each ``run.poll()``; replace it by
    ``nbmgpu.ui.summary`` when the run is over, since a saved notebook keeps no widgets.
    """

    _esm = Path(__file__).with_name("panel.js")
    _css = Path(__file__).with_name("panel.css")

    about = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    notices: traitlets.List[str] = traitlets.List().tag(sync=True)
    failure = traitlets.Dict(allow_none=True).tag(sync=True)
    progress: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    curves: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    hidden_curves = traitlets.Int().tag(sync=True)
    ranks: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    logs = traitlets.Dict().tag(sync=True)
    selected = traitlets.Int(NO_RANK).tag(sync=True)
    stop_clicks = traitlets.Int().tag(sync=True)

    def __init__(self, run: Run) -> None:
        """Show ``run`` as its view knows it now."""
        self._run = run
        self._stop_callbacks: list[Callable[[bool], object]] = []
        self._tails = [LogTail(run.log_path(rank)) for rank in range(run.record.world_size)]
        self._heavy_after = 0.0
        super().__init__(about=_about(run), **self._light())
        self._refresh_heavy()
        self.on_msg(self._receive)

    def on_stop(self, callback: Callable[[bool], object]) -> None:
        """Call ``callback(force)`` when Stop is clicked: False the first time, then True."""
        self._stop_callbacks.append(callback)

    def refresh(self) -> None:
        """Send what changed in the run's view since the last call.

        Never polls the run: its events belong to the caller.  Curves and logs are
        looked at less often, and never for more than a tenth of the time, except
        once the run has ended.
        """
        with self.hold_sync():
            for name, value in self._light().items():
                setattr(self, name, value)
            if self._run.view.ended or time.monotonic() >= self._heavy_after:
                self._refresh_heavy()

    def _light(self) -> dict[str, Any]:
        run, view = self._run, self._run.view
        state = view.state
        stopping = not view.ended and (run.folder / STOP_FILE).exists()
        why = content.cause(run, state)
        return {
            "status": {
                "state": state,
                "word": "stopping" if stopping else content.state_word(state),
                "tone": content.TONES[state],
                "elapsed": content.clock(run.duration, tenths=view.ended is not None),
                "over": view.ended is not None,
            },
            "notices": content.notices(view),
            "failure": dataclasses.asdict(why) if why else None,
            "progress": [dataclasses.asdict(bar) for bar in content.bars(view)],
            "ranks": [dataclasses.asdict(mark) for mark in content.marks(run, stopping)],
        }

    def _refresh_heavy(self) -> None:
        begun = time.monotonic()
        names = content.curve_names(self._run.view)
        shown = names[:CURVES]
        limit = min(POINTS, ALL_POINTS // max(1, len(shown)))
        self.curves = [self._curve(name, limit) for name in shown]
        self.hidden_curves = len(names) - len(shown)
        self._refresh_logs()
        now = time.monotonic()
        self._heavy_after = now + max(HEAVY_INTERVAL, 10 * (now - begun))

    def _curve(self, name: str, limit: int) -> dict[str, Any]:
        curve = self._run.view.curves[name]
        steps, values = content.thin(curve, limit)
        last = float(values[-1])
        with np.errstate(over="ignore"):
            points = np.column_stack([steps, values]).astype("<f4").tobytes()
        return {
            "name": content.plain(name),
            "last": content.number(last),
            "sound": bool(np.isfinite(last)),
            "steps": len(curve),
            "points": points,
        }

    @traitlets.observe("selected")
    def _on_selected(self, _change: object) -> None:
        self._refresh_logs()

    def _refresh_logs(self) -> None:
        """Keep the logs of rank 0 and of the open one; the others stay where they are, on disk."""
        wanted = {0, self.selected} & set(range(len(self._tails)))
        self.logs = {str(rank): self._tails[rank].read() for rank in sorted(wanted)}

    def _receive(self, _widget: object, message: dict[str, Any], _buffers: object) -> None:
        if message.get("kind") != "stop" or self._run.view.ended:
            return
        force = self.stop_clicks > 0
        self.stop_clicks += 1
        for callback in self._stop_callbacks:
            callback(force)

    def __repr__(self) -> str:
        """Say what it is where widgets cannot be shown."""
        return f"RunPanel of run {self._run.id}"


def _about(run: Run) -> dict[str, str]:
    return {
        "id": run.id,
        "headline": content.headline(run.record),
        "batch": content.batch_line(run.record),
    }


class LogTail:
    """The last lines of a log file, however long it is: only its end is ever read."""

    def __init__(self, path: Path) -> None:
        """Look at ``path``, which need not exist yet."""
        self._path = path
        self._size = 0
        self._text = ""

    def read(self) -> str:
        """Return the last lines as plain text; reads nothing while the file does not grow."""
        try:
            size = self._path.stat().st_size
            if size == self._size:
                return self._text
            with self._path.open("rb") as file:
                file.seek(max(0, size - LOG_BYTES), os.SEEK_SET)
                data = file.read(LOG_BYTES)
        except FileNotFoundError:
            return ""
        if size > LOG_BYTES and b"\n" in data:
            data = data.partition(b"\n")[2]  # the first line may lack its beginning
        lines = content.plain(data.decode(errors="replace")).split("\n")
        self._size = size
        self._text = "\n".join(lines[-LOG_LINES - 1 :])
        return self._text
