"""The engine that runs on the nodes of a Ray cluster."""

from __future__ import annotations

import dataclasses
import importlib.util
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from nbmgpu.engines.base import Engine, RunHandle, RunStorage
from nbmgpu.engines.multi_node import FORCE_STOP, STOP
from nbmgpu.engines.multi_node.launch_file import LaunchFile
from nbmgpu.engines.multi_node.placement import place_on_nodes
from nbmgpu.errors import LaunchError, format_message
from nbmgpu.options.engine_options import EngineOptions
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import LAUNCHER, Ended
from nbmgpu.serialization.storage import allocate_file

from .cluster import Head, HeadProcess
from .cluster_options import ClusterOptions

if TYPE_CHECKING:
    from nbmgpu.devices.placement import Placement
    from nbmgpu.options.run_options import RunOptions
    from nbmgpu.runs.run import Run

NOT_STARTED = "It was stopped before the Ray cluster had room for it."


class RayEngine(Engine):
    """Starts the head of each run as a driver of the cluster."""

    outlives_kernel = True

    def __init__(self) -> None:
        """Know no cluster yet."""
        self._next: HeadProcess | None = None

    def missing(self) -> str:
        """Return Ray's package where it is not installed."""
        return "" if importlib.util.find_spec("ray") else "ray"

    def place(self, options: RunOptions) -> Placement:
        """Place the same number of ranks on each node; Ray chooses the nodes, and their GPUs."""
        if self.missing():
            what, instead = "--engine ray needs Ray", "pip install ray"
            raise LaunchError(format_message(what, instead=instead))
        wanted = ClusterOptions.of(options.engine_values())
        self._next = head = self._connected(wanted.address)
        cluster = head.cluster()
        nodes = options.nodes or 1

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

    def _connected(self, address: str) -> HeadProcess:
        """Return a head for the next run: the last one, if it has not been used."""
        if self._next is not None:
            if self._next.waits and self._next.address == address:
                return self._next
            self._next.close()
        return HeadProcess(address)

    def allocate(self, folder: Path, nbytes: int, world_size: int) -> RunStorage:
        """Return files in the run folder."""
        bundle = allocate_file(folder, "bundle", nbytes)
        results = (allocate_file(folder, f"result-{rank}", 0) for rank in range(world_size))
        return RunStorage(bundle, tuple(results))

    def launch(self, run: Run) -> RunHandle:
        """Let a head reserve nodes, and start ranks there."""
        engine_option = tuple(run.record.options.values["engine_option"])
        wanted = ClusterOptions.of(EngineOptions(engine_option=engine_option).engine_values())
        LaunchFile.create(run.folder, wanted.interface)
        head, self._next = self._connected(wanted.address), None
        return head.begin(run.folder)

    def release(self, storage: RunStorage, in_use: bool) -> None:
        """Remove the files."""
        for each in (storage.bundle, *storage.results):
            each.close()

    def is_alive(self, run: Run) -> bool:
        """Return whether the head runs, or has not been started yet."""
        return Head(run.folder).alive

    def stop(self, run: Run, force: bool, requested: bool) -> None:
        """Signal the head, also while it waits for the cluster."""
        run.refresh()
        head = Head(run.folder)
        if run.view.launcher is not None:
            head.signal(FORCE_STOP if force else STOP)
            return
        head.signal(signal.SIGTERM)
        events = EventWriter(run.events_path("launcher"), LAUNCHER)
        events.emit(Ended, ending="stopped", detail=NOT_STARTED)
        events.close()
