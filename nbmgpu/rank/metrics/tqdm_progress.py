"""Turns tqdm bars of a rank into progress events: one display per run, not one per rank.

A bar is identified by its position, as in a terminal: a loop's inner bar is one bar, however often
it is created again.
"""

from __future__ import annotations

import io
import sys
import types
from typing import Any, NoReturn

from nbmgpu.patches import PatchStack
from nbmgpu.rank.reporting.recorder import Recorder


class _NullOutput(io.StringIO):
    """The file of reported bars, which discards what they draw."""

    def write(self, text: str) -> int:
        return len(text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a progress bar cannot leave its rank")


def install(recorder: Recorder) -> None:
    """Patch tqdm to report bars to ``recorder``, except bars with a file of their own."""
    try:
        from tqdm.std import tqdm
    except ImportError:
        return
    output = _NullOutput()
    original_init, original_display, original_close = tqdm.__init__, tqdm.display, tqdm.close

    def patched_init(bar: Any, *args: Any, **kwargs: Any) -> None:
        bar._nbmgpu_reported = kwargs.get("file") in (None, sys.stderr, sys.stdout)
        if bar._nbmgpu_reported:
            kwargs["file"] = output
        original_init(bar, *args, **kwargs)

    def patched_display(bar: Any, msg: str | None = None, pos: int | None = None) -> bool:
        if not _is_reported(bar):
            return bool(original_display(bar, msg, pos))
        if not bar.disable:
            _report(recorder, bar)
        return True

    def patched_close(bar: Any) -> None:
        was_open = _is_reported(bar) and not bar.disable
        original_close(bar)
        if was_open:
            _report(recorder, bar, done=True)

    patches = PatchStack()
    patches.replace("tqdm.std.tqdm.__init__", patched_init)
    patches.replace("tqdm.std.tqdm.display", patched_display)
    patches.replace("tqdm.std.tqdm.close", patched_close)


def replace_widgets() -> None:
    """Replace ``tqdm.notebook`` by plain bars, since a rank has no front end for its widgets.

    Must run before the cell's objects are loaded, which may refer to that module.
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


def _is_reported(bar: Any) -> bool:
    return getattr(bar, "_nbmgpu_reported", False)


def _report(recorder: Recorder, bar: Any, done: bool = False) -> None:
    label = (getattr(bar, "desc", "") or "").rstrip(": ")
    postfix = getattr(bar, "postfix", None)
    if postfix:
        label = f"{label} {postfix}".strip()
    total = int(bar.total) if bar.total else 0
    recorder.progress(f"tqdm:{abs(bar.pos)}", label=label, step=int(bar.n), total=total, done=done)
