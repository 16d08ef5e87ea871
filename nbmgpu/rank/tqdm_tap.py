"""tqdm bars of a rank become progress events: one display per run, not one per rank."""

from __future__ import annotations

import io
import sys
from typing import Any

from .recorder import Recorder


class _Silence(io.StringIO):
    """Where bars draw themselves: nowhere."""

    def write(self, text: str) -> int:
        return len(text)


def install(recorder: Recorder) -> None:
    """Let every bar report to ``recorder``; bars that write to a file of their own are left."""
    try:
        from tqdm.std import tqdm
    except ImportError:
        return
    silence = _Silence()
    original = tqdm.__init__
    counter = iter(range(1_000_000))

    def begin(bar: Any, *args: Any, **kwargs: Any) -> None:
        file = kwargs.get("file")
        tapped = file is None or file in (sys.stderr, sys.stdout)
        if tapped:
            kwargs["file"] = silence
        original(bar, *args, **kwargs)
        bar._nbmgpu_key = f"tqdm:{next(counter)}" if tapped else None

    def display(bar: Any, msg: str | None = None, pos: int | None = None) -> bool:
        key = getattr(bar, "_nbmgpu_key", None)
        if key is None:
            return bool(shown(bar, msg, pos))
        _report(recorder, bar, key)
        return True

    def close(bar: Any) -> None:
        if getattr(bar, "_nbmgpu_key", None) is not None and not bar.disable:
            _report(recorder, bar, bar._nbmgpu_key, done=True)
        closed(bar)

    shown, closed = tqdm.display, tqdm.close
    tqdm.__init__, tqdm.display, tqdm.close = begin, display, close


def _report(recorder: Recorder, bar: Any, key: str, done: bool = False) -> None:
    label = (getattr(bar, "desc", "") or "").rstrip(": ")
    postfix = getattr(bar, "postfix", None)
    if postfix:
        label = f"{label} {postfix}".strip()
    total = int(bar.total) if bar.total else 0
    recorder.progress(key, label=label, step=int(bar.n), total=total, done=done)
