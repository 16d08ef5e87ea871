"""Locates the scripts and styles of widgets, built from ``labextension/`` into ``static/``."""

from __future__ import annotations

import json
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
    path = FOLDER / f"{name}.js"
    return path if path.exists() else FALLBACK.format(text=json.dumps(NOT_BUILT))


def style(name: str) -> str | Path:
    """Return the style of a widget; empty if it is not built."""
    path = FOLDER / f"{name}.css"
    return path if path.exists() else ""
