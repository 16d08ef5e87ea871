"""Traces of ``--profile`` in parts that fit into messages of a kernel."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from nbmgpu.runs.folder import trace_path
from nbmgpu.runs.run import Run

PART_BYTES = 150_000
"""Bytes of a part: Jupyter drops what a kernel sends beyond 1 MB per second."""


@dataclass(frozen=True)
class TraceRequest:
    """Asks for a part of a trace.

    Attributes:
        rank: whose trace.
        offset: bytes that have arrived before.
    """

    rank: int
    offset: int


@dataclass(frozen=True)
class TracePart:
    """A part of a trace.

    Attributes:
        content: in base64.
        end: bytes of the file up to the end of the part.
        size: bytes of the file; 0 if there is none.
    """

    content: str
    end: int
    size: int


def trace_part(run: Run, request: TraceRequest) -> TracePart:
    """Return a part of the trace of a rank."""
    try:
        with trace_path(run.folder, int(request.rank)).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, int(request.offset)))
            content = file.read(PART_BYTES)
            return TracePart(base64.b64encode(content).decode(), file.tell(), size)
    except OSError:
        return TracePart("", 0, 0)
