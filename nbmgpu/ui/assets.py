"""Locates the scripts and styles of widgets, built from ``labextension/`` into ``static/``."""

from __future__ import annotations

import json
import os
from pathlib import Path

FOLDER = Path(__file__).with_name("static")

NOT_BUILT = """\
nbmgpu: the front end of this widget is not built.
The run is not affected, and its summary appears here when it ends.
To build it with Node.js 20 or newer, run this in the clone and restart the kernel:
    pip install --force-reinstall --no-deps .
    (or make front, if nbmgpu was installed by make or with --editable)
Packages of nbmgpu contain the built front end.
"""

FALLBACK = """\
function render({{ el }}) {{
  const node = document.createElement("pre");
  node.textContent = {text};
  el.append(node);
}}
export default {{ render }};
"""


def script(name: str) -> str | Path:
    """Return the script of a widget, or one that shows a message if it is not built."""
    return _contents(f"{name}.js") or FALLBACK.format(text=json.dumps(NOT_BUILT))


def style(name: str) -> str | Path:
    """Return the style of a widget; empty if it is not built."""
    return _contents(f"{name}.css")


def _contents(name: str) -> str | Path:
    """Return a file's text, or its path if anywidget reloads changed files; empty without it.

    Given a path, anywidget keeps each widget that was ever made, and with it the run's results.
    """
    path = FOLDER / name
    if not path.exists():
        return ""
    return path if os.environ.get("ANYWIDGET_HMR") == "1" else path.read_text(encoding="utf-8")
