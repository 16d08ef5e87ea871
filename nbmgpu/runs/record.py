"""The record of a run: the content of ``run.json``."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import dataclass, field
from typing import Any

from nbmgpu.strategies.mesh_sizes import describe_position, parse_mesh
from nbmgpu.system.processes import process_is_alive

from .engine_plugins import DEFAULT_ENGINE
from .field_types import has_declared_types


@dataclass(frozen=True)
class KernelRecord:
    """The kernel that launched a run.

    Attributes:
        pid, create_time: its process; ``create_time`` is in seconds since the epoch, in UTC.
        cwd, sys_path: its working directory and module search path, which ranks use too.
        notebook: path of the notebook; empty if the kernel does not know it.
        host: name of its machine; empty in records of earlier versions.
        python: path of its interpreter; empty in records of earlier versions.
        libraries: those of ``sys_path`` that belong to its interpreter.
    """

    pid: int
    create_time: float
    cwd: str
    sys_path: list[str]
    notebook: str = ""
    host: str = ""
    python: str = ""
    libraries: list[str] = field(default_factory=list)

    def search_path(self) -> list[str]:
        """Return the module search path of a process that runs the cell.

        It is the kernel's, but another interpreter has libraries of its own.
        """
        if self.python in ("", sys.executable):
            return self.sys_path
        return [*self.own_path, *(path for path in sys.path if path not in self.own_path)]

    @property
    def own_path(self) -> list[str]:
        """The module search path without libraries: the notebook's own folders."""
        return [path for path in self.sys_path if path not in self.libraries]

    @property
    def is_this_process(self) -> bool:
        """Whether this process is the kernel: others may have its pid, later or on another host."""
        is_here = self.host in ("", socket.gethostname())
        return is_here and self.pid == os.getpid() and process_is_alive(self.pid, self.create_time)


@dataclass(frozen=True)
class StoragePaths:
    """Paths of the bundle and of the result of each rank.

    They can be opened while the run is active; they may be memory files that vanish with it.
    """

    bundle: str
    results: list[str]


@dataclass(frozen=True)
class LaunchOptions:
    """The options that a run was launched with.

    Attributes:
        strategy, batch, seed, fresh: as in ``RunOptions``.
        timeout: seconds after which the run is stopped; None for no limit.
        engine: name of the engine that launched it.
        may_restart: whether ranks may ask for a new start with whole batches.
        verify: seconds for which a reference compares the ranks with one device; 0 for none.
        repeated: when the first run began that this one replaces, as it failed or was to start
            again, in seconds since the epoch; None if there is none.
        values: all ``RunOptions`` by name, those of the strategy included.
    """

    strategy: str
    batch: str
    seed: int | None
    timeout: float | None
    fresh: bool
    engine: str = DEFAULT_ENGINE
    may_restart: bool = False
    verify: float = 0.0
    repeated: float | None = None
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether the ranks stay for the next cell."""
        return bool(self.values.get("hold"))

    @property
    def detached(self) -> bool:
        """Whether the run outlives its kernel though runs of its engine usually do not."""
        return self.engine == DEFAULT_ENGINE and bool(self.values.get("detach"))


@dataclass(frozen=True)
class RunRecord:
    """The description of a run, written before it starts: the content of ``run.json``.

    Attributes:
        id: the run's name.
        created: in seconds since the epoch, in UTC.
        devices: one name per rank (``cuda:1``, ``cpu``).
        threads: threads per rank, for computing on the CPU.
        batch_line: how the global batch is sharded, as text.
        nodes: number of machines; all have as many ranks.
        options: the options of the launch.
        kernel: the kernel that launched it.
        storage: where the bundle and the results are.
        packages: versions of the packages that the cell uses, by distribution, where other
            machines must have the same; else empty.
    """

    id: str
    created: float
    devices: list[str]
    options: LaunchOptions
    kernel: KernelRecord
    storage: StoragePaths
    threads: int = 1
    batch_line: str = ""
    nodes: int = 1
    packages: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> RunRecord:
        """Return the record that ``text``, the content of ``run.json``, holds.

        Raises:
            ValueError, TypeError: it is incomplete, or another version of nbmgpu wrote it.
        """
        try:
            fields = json.loads(text)
            nested = {
                "options": LaunchOptions(**fields["options"]),
                "kernel": KernelRecord(**fields["kernel"]),
                "storage": StoragePaths(**fields["storage"]),
            }
            record = cls(**fields | nested)
            if not has_declared_types(record):
                raise TypeError("a field has another type")
            return record
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"run.json was written by another version of nbmgpu: {error}"
            ) from None

    def mesh_position(self, rank: int) -> str:
        """Return the position of ``rank`` in the mesh (``dp 1 tp 0``); empty without a mesh.

        Dimensions of size 1 are left out: all ranks have the same position there.
        """
        mesh = parse_mesh(self.options.values.get("mesh") or ())
        return describe_position(mesh, rank)

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks on each machine."""
        return self.world_size // self.nodes

    @property
    def ranks_share_devices(self) -> bool:
        """Whether several ranks use the same GPU."""
        of_node = self.devices[: self.ranks_per_node]
        return len(set(of_node)) < len(of_node)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.devices)
