"""tqdm bars of a rank become progress events: one display per run, not one per rank.

A bar is known by its line, as in a terminal: a loop's inner bar is one bar, however
often it begins anew.
"""

from __future__ import annotations

import io
import sys
import types
from typing import Any, NoReturn

from nbmgpu.patches import PatchStack
from nbmgpu.rank.reporting.recorder import Recorder


class _Silence(io.StringIO):
    """Where bars draw themselves: nowhere."""

    def write(self, text: str) -> int:
        return len(text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a progress bar cannot leave its rank")


def install(recorder: Recorder) -> None:
    """Let every bar report to ``recorder``; bars that write to a file of their own are left."""
    try:
        from tqdm.std import tqdm
    except ImportError:
        return
    silence = _Silence()
    original, shown, closed = tqdm.__init__, tqdm.display, tqdm.close

    def begin(bar: Any, *args: Any, **kwargs: Any) -> None:
        bar._nbmgpu_tapped = kwargs.get("file") in (None, sys.stderr, sys.stdout)
        if bar._nbmgpu_tapped:
            kwargs["file"] = silence
        original(bar, *args, **kwargs)

    def display(bar: Any, msg: str | None = None, pos: int | None = None) -> bool:
        if not _is_tapped(bar):
            return bool(shown(bar, msg, pos))
        if not bar.disable:
            _report(recorder, bar)
        return True

    def close(bar: Any) -> None:
        was_open = _is_tapped(bar) and not bar.disable
        closed(bar)
        if was_open:
            _report(recorder, bar, done=True)

    patches = PatchStack()
    patches.replace("tqdm.std.tqdm.__init__", begin)
    patches.replace("tqdm.std.tqdm.display", display)
    patches.replace("tqdm.std.tqdm.close", close)


def replace_widgets() -> None:
    """Let ``tqdm.notebook`` give plain bars: a rank has no front end for its widgets.

    This comes before the bundle, which may refer to that module.
    """
    try:
        import tqdm
    except ImportError:
        return
    package: Any = tqdm
    module: Any = types.ModuleType("tqdm.notebook")
    module.tqdm = module.tqdm_notebook = package.tqdm
    module.trange = module.tnrange = package.trange
    PatchStack().add("tqdm.notebook", module)
    sys.modules["tqdm.notebook"] = module


def _is_tapped(bar: Any) -> bool:
    return getattr(bar, "_nbmgpu_tapped", False)


def _report(recorder: Recorder, bar: Any, done: bool = False) -> None:
    label = (getattr(bar, "desc", "") or "").rstrip(": ")
    postfix = getattr(bar, "postfix", None)
    if postfix:
        label = f"{label} {postfix}".strip()
    total = int(bar.total) if bar.total else 0
    recorder.progress(f"tqdm:{abs(bar.pos)}", label=label, step=int(bar.n), total=total, done=done)
