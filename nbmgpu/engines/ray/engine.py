"""The engine that runs on the nodes of a Ray cluster."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nbmgpu.engines.base import RunHandle, RunStorage
from nbmgpu.engines.multi_node.engine import MultiNodeEngine
from nbmgpu.engines.multi_node.launch_file import LaunchFile
from nbmgpu.engines.multi_node.placement import place_on_nodes
from nbmgpu.errors import LaunchError, format_message
from nbmgpu.options.engine_options import recorded_engine_values
from nbmgpu.runs.folder import runs_root

from .cluster import Head, HeadProcess
from .cluster_options import ClusterOptions

if TYPE_CHECKING:
    from nbmgpu.devices.placement import Placement
    from nbmgpu.options.run_options import RunOptions
    from nbmgpu.runs.run import Run


NEW_CLUSTER = "local"
"""The address of a cluster that Ray starts on this machine for the run, and ends with it."""


class RayEngine(MultiNodeEngine):
    """Starts the head of each run as a driver of the cluster."""

    NOT_STARTED = "It was stopped before the Ray cluster had room for it."

    def __init__(self) -> None:
        """Know no cluster yet."""
        self._next: HeadProcess | None = None
        self._address = ""

    def missing(self) -> str:
        """Return Ray's package where it is not installed."""
        return "" if importlib.util.find_spec("ray") else "ray"

    def check_options(self, values: Mapping[str, str]) -> None:
        """Check options of a profile."""
        ClusterOptions.of(values)

    def place(self, options: RunOptions) -> Placement:
        """Place the same number of ranks on each node; Ray chooses the nodes, and their GPUs."""
        if self.missing():
            what, instead = "--engine ray needs Ray", "pip install ray"
            raise LaunchError(format_message(what, instead=instead))
        wanted = ClusterOptions.of(options.engine_values())
        has_checkpoints = bool(options.checkpoint_every or options.resume)
        folder = str(runs_root()) if has_checkpoints else ""
        self._next = head = self._connected(wanted.address, folder)
        cluster = head.cluster()
        nodes = options.nodes or 1
        try:
            cluster.require_seen(nodes, folder)
        except LaunchError:
            self.disconnect()  # a run with another folder needs another head
            raise

        def gpus_per_node() -> int:
            gpus = cluster.gpus_per_node(nodes)
            if not gpus and wanted.accelerator_type and isinstance(options.gpus, int):
                return options.gpus  # the cluster has to grow
            return gpus

        placement = place_on_nodes(options, gpus_per_node, wanted.cpus_per_rank)
        if not cluster.dashboard:
            return placement
        notice = f"{placement.notice} Ray's dashboard: http://{cluster.dashboard}"
        return dataclasses.replace(placement, notice=notice)

    def _connected(self, address: str, folder: str = "") -> HeadProcess:
        """Return a head for the next run: the last one, if it has not been used."""
        address = address or os.environ.get("RAY_ADDRESS", "")
        if self._next is not None:
            same = self._next.address == address and folder in ("", self._next.folder)
            if same and self._next.can_begin():
                return self._next
            self.disconnect()
        self._address = address
        return HeadProcess(address, folder)

    def disconnect(self) -> None:
        """End the head that waits for the next run, if there is one."""
        head, self._next = self._next, None
        if head is not None:
            head.end()

    def release(self, storage: RunStorage, in_use: bool) -> None:
        """Remove the files, and connect to the cluster for the next run meanwhile."""
        super().release(storage, in_use)
        if self._next is None and self._address not in ("", NEW_CLUSTER):
            self._next = HeadProcess(self._address)

    def launch(self, run: Run) -> RunHandle:
        """Let a head reserve nodes, and start ranks there."""
        wanted = ClusterOptions.of(recorded_engine_values(run.record.options.values))
        LaunchFile.create(run.folder, wanted.interface)
        head, self._next = self._connected(wanted.address), None
        return head.begin(run.folder)

    def is_alive(self, run: Run) -> bool:
        """Return whether the head runs, or has not been started yet."""
        return Head(run.folder).alive

    def cancel(self, run: Run, sig: signal.Signals | None = None) -> None:
        """Signal the head, also while it waits for the cluster."""
        Head(run.folder).signal(sig or signal.SIGTERM)
