"""What the routes answer besides the parts of a run: plain data, in TypeScript as well.

``tools/typescript_types.py`` makes labextension/src/generated/server.ts from this file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

from nbmgpu.report.run_line import RunLine

DeviceKind = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class DeviceUse:
    """A device and how busy it is at this moment.

    Attributes:
        name: what a run calls it: ``cpu``, ``cuda:0``.
        kind: whether it is the processor with its memory, or a GPU.
        label: what people call it: ``NVIDIA H100 80GB HBM3``, ``8 cores``.
        use: from 0 to 1, -1 when unknown.
        memory_used, memory_total: in bytes, -1 when unknown.
    """

    name: str
    kind: DeviceKind
    label: str
    use: float
    memory_used: int
    memory_total: int


@dataclass(frozen=True)
class ServerStatus:
    """The machine at this moment.

    Attributes:
        version: of nbmgpu in the server's environment.
        devices: all that runs could be on.
        runs_root: the folder of all runs.
        server_root: the folder whose files the server shows.
        problems: what is missing or in the way, in sentences.
    """

    version: str
    devices: list[DeviceUse]
    runs_root: str
    server_root: str
    problems: list[str]


@dataclass(frozen=True)
class RunSummary:
    """What stays of a run in a notebook: HTML without a script, and text."""

    html: str
    text: str


@dataclass(frozen=True)
class RunList:
    """Runs, newest first; ``more`` says whether there are older ones."""

    runs: list[RunLine]
    more: bool


@dataclass(frozen=True)
class News:
    """What the stream says once a second.

    Attributes:
        devices: all of them.
        runs: the lines that have changed; with the first word, the newest runs.
        gone: ids of runs whose folders were removed.
        more: whether there are older runs than those told.
        problems: what is missing or in the way, in sentences.
    """

    devices: list[DeviceUse]
    runs: list[RunLine]
    gone: list[str]
    more: bool
    problems: list[str]


@dataclass(frozen=True)
class Visibility:
    """What a page tells a stream: while nobody looks, nothing is sent and nothing is read."""

    visible: bool


@dataclass(frozen=True)
class StopRequest:
    """How to stop a run: gently, so that results come back, or by force."""

    force: bool = False


@dataclass(frozen=True)
class PickRequest:
    """The ``%%mgpu`` line that a cell has, or nothing, and those ``Controls`` that were set."""

    line: str = ""
    controls: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """A strategy as people choose it.

    Attributes:
        name: what ``--strategy`` takes.
        summary: one line for people.
        needs, saves, costs: what it asks for, spares and takes.
        options: the flags of ``%%mgpu`` that it can have.
        shards_data: whether each rank takes a share of every global batch.
        in_one_process: whether one rank holds all devices.
        missing: what it lacks where the server runs, as a sentence; mostly empty.
    """

    name: str
    summary: str
    needs: str
    saves: str
    costs: str
    options: list[str]
    shards_data: bool
    in_one_process: bool
    missing: str


@dataclass(frozen=True)
class FlagHelp:
    """A flag of ``%%mgpu``: how it is written, what it does, and values to propose.

    A flag without ``metavar`` is a switch.
    """

    name: str
    short: str
    metavar: str
    help: str
    values: list[str]


@dataclass(frozen=True)
class Catalogue:
    """What one can choose on the first line of a cell."""

    strategies: list[Choice]
    flags: list[FlagHelp]


@dataclass(frozen=True)
class Problem:
    """Why something was not done, and what to do; ``hint`` may be empty."""

    message: str
    hint: str


class CloseCode(IntEnum):
    """How the server closes a stream for good; after any other code a page comes back."""

    OVER = 4000
    GONE = 4404
