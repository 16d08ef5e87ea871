"""Requests and responses of the API, except for the parts of a run (``nbmgpu.report``).

``tools/typescript_types.py`` generates labextension/src/generated/server.ts from this file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

from nbmgpu.report.run_line import RunLine

DeviceKind = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class DeviceUsage:
    """A device and its current usage.

    Attributes:
        name: the name in runs: ``cpu``, ``cuda:0``.
        kind: the CPU with its memory, or a GPU.
        label: the display name: ``NVIDIA H100 80GB HBM3``, ``8 cores``.
        use: utilization from 0 to 1, -1 if unknown.
        memory_used, memory_total: in bytes, -1 if unknown.
    """

    name: str
    kind: DeviceKind
    label: str
    use: float
    memory_used: int
    memory_total: int


@dataclass(frozen=True)
class ServerStatus:
    """The current state of the machine.

    Attributes:
        version: the version of nbmgpu in the server's environment.
        devices: all devices.
        runs_root: the folder of all runs.
        server_root: the root folder of the server's contents manager.
        problems: configuration problems, in sentences.
    """

    version: str
    devices: list[DeviceUsage]
    runs_root: str
    server_root: str
    problems: list[str]


@dataclass(frozen=True)
class RunSummary:
    """The summary of a finished run, as HTML without scripts and as text."""

    html: str
    text: str


@dataclass(frozen=True)
class RunList:
    """Runs, newest first; ``more`` is whether older ones exist."""

    runs: list[RunLine]
    more: bool


@dataclass(frozen=True)
class DiskUsage:
    """What all runs take on the disk, in bytes, and how many they are."""

    runs: int
    nbytes: int


@dataclass(frozen=True)
class Update:
    """A message of the stream: the changes since the last message, at most once a second.

    Attributes:
        devices: all devices.
        runs: the entries that changed; in the first message, the newest runs.
        gone: ids of runs whose folders were removed.
        more: whether there are older runs than those sent.
        problems: configuration problems, in sentences.
    """

    devices: list[DeviceUsage]
    runs: list[RunLine]
    gone: list[str]
    more: bool
    problems: list[str]


@dataclass(frozen=True)
class Visibility:
    """A message from the page to a stream: nothing is read or sent while the page is hidden."""

    visible: bool


@dataclass(frozen=True)
class StopRequest:
    """Whether to interrupt a run, so that its results are written back, or to kill it."""

    force: bool = False


@dataclass(frozen=True)
class PickRequest:
    """The ``%%mgpu`` line of a cell, or an empty string, and the ``Controls`` that were changed."""

    line: str = ""
    controls: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StrategyInfo:
    """A strategy, described for people.

    Attributes:
        name: what ``--strategy`` takes.
        summary: one sentence.
        needs, saves, costs: its requirements, what it saves, and its cost.
        options: the flags of ``%%mgpu`` that it supports.
        shards_data: whether each rank processes a shard of every global batch.
        in_one_process: whether one process uses all devices.
        missing: packages missing in the server's environment, as a sentence; usually empty.
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
    """A flag of ``%%mgpu``: its spelling, its help text, and values to suggest.

    A flag without ``metavar`` is a switch.
    """

    name: str
    short: str
    metavar: str
    help: str
    values: list[str]


@dataclass(frozen=True)
class Catalogue:
    """The strategies and flags of the ``%%mgpu`` line."""

    strategies: list[StrategyInfo]
    flags: list[FlagHelp]


@dataclass(frozen=True)
class ErrorBody:
    """The body of an error response; ``hint`` says what to do and may be empty."""

    message: str
    hint: str


class CloseCode(IntEnum):
    """Close codes of streams that have ended; after any other code, clients reconnect."""

    OVER = 4000
    GONE = 4404
