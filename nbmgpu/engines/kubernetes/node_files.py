"""What the kernel and the pods of a run tell each other by files in the run folder."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

VARIABLES_FILE = "kubernetes-variables.json"
"""Environment variables of the notebook, which only its owner can read.  A manifest would show them
to all who may read pods.  The head removes the file when all nodes have read it."""

HEAD_FILE = "kubernetes-head"
"""Is there when the head can be reached, and has the name of its pod."""

FAILED = "failed-{}"
"""Is there if the node with that number cannot start ranks."""


def write_variables(folder: Path, variables: dict[str, str]) -> None:
    """Write the variables that pods get."""
    fd = os.open(folder / VARIABLES_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(variables, file)


def read_variables(folder: Path) -> dict[str, str]:
    """Return the variables that pods get; none if they have been removed."""
    with suppress(FileNotFoundError):
        return dict(json.loads((folder / VARIABLES_FILE).read_text()))
    return {}


def failed_nodes(folder: Path) -> list[int]:
    """Return the numbers of nodes that cannot start ranks."""
    return sorted(int(path.name.partition("-")[2]) for path in folder.glob(FAILED.format("*")))


def node_logs(folder: Path) -> str:
    """Return the end of what each node has printed."""
    texts = []
    for log in sorted((folder / "logs").glob("node-*.log")):
        if text := log.read_text(errors="replace").strip():
            texts.append(text[-1000:])
    return "\n".join(dict.fromkeys(texts))
