"""The scripts and styles of widgets, which are built from ``labextension/`` into ``static/``."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).with_name("static")

NOT_BUILT = """\
nbmgpu: the part of this widget that the browser shows is not built.
The run itself goes on, and its summary appears here when it ends.
To build it, with Node.js 20 or newer, type in the clone and start the kernel anew:
    pip install --force-reinstall --no-deps .
    (make front, where nbmgpu was installed by make or with --editable)
Packages of nbmgpu have it built.
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
    """Return the script of a widget; where it is not built, one that says so in words."""
    path = FOLDER / f"{name}.js"
    return path if path.exists() else FALLBACK.format(text=json.dumps(NOT_BUILT))


def style(name: str) -> str | Path:
    """Return the style of a widget, empty where it is not built."""
    path = FOLDER / f"{name}.css"
    return path if path.exists() else ""
