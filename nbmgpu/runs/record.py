"""The record of a run: the content of ``run.json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .engine_plugins import DEFAULT_ENGINE


@dataclass(frozen=True)
class RunRecord:
    """What was asked: the content of ``run.json``.

    Attributes:
        id: the run's name.
        created, kernel_create_time: seconds since the epoch, in UTC.
        devices: one name per rank (``cuda:1``, ``cpu``).
        strategy, batch, seed, fresh: as in ``RunOptions``.
        timeout: seconds after which the run is ended; None for no limit.
        options: all of these options, and the strategy's.
        engine: the name of the engine that started it.
        cwd, sys_path: the kernel's, which ranks take on.
        bundle, results: paths to open while the run lives, one result per rank; they may be
            memory files that vanish with it.
        kernel_pid: the process that has asked for the run.
        notebook: its path; empty where the kernel does not know it.
        threads: of a rank, for computing on the CPU.
        batch_line: the global batch in words.
    """

    id: str
    created: float
    strategy: str
    devices: list[str]
    batch: str
    seed: int | None
    timeout: float | None
    fresh: bool
    cwd: str
    sys_path: list[str]
    bundle: str
    results: list[str]
    kernel_pid: int
    kernel_create_time: float
    notebook: str = ""
    threads: int = 1
    batch_line: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    engine: str = DEFAULT_ENGINE

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.devices)
