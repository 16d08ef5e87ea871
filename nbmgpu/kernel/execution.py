"""One run as the kernel lives it: read the cell, ship, launch, watch, take back."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from nbmgpu.cell import Cell, read_cell
from nbmgpu.devices.devices import Placement, place_ranks, probe
from nbmgpu.devices.requirements import lack_of
from nbmgpu.engines.local.client import LaunchClient, launch_client
from nbmgpu.environment import logging_state, random_state, torch_settings, tracker_run
from nbmgpu.environment.headers import SentHeader
from nbmgpu.errors import LaunchError, OptionError, compose
from nbmgpu.options.run_options import RunOptions
from nbmgpu.report.digest import write_digest
from nbmgpu.runs.events import KERNEL, Ended, Event, EventWriter, Notice
from nbmgpu.runs.failure import exception_of
from nbmgpu.runs.run import COLLECTED_FILE, Run, RunRecord, new_run_id, runs_root
from nbmgpu.serialization import Shipment, ship
from nbmgpu.serialization.storage import Place, shelf
from nbmgpu.strategies import profile_of
from nbmgpu.strategies.profiles import COMPILER
from nbmgpu.system.processes import creation_time

from .batch_size import batch_line
from .notebook_context import Surroundings
from .write_back import Returns

PATCHES = (
    "{}: the notebook has put a function of its own there, and ranks have the library's. Put the "
    "assignment into the cell."
)
DETACHED = (
    "{}: computed in the notebook with gradients; the graph stays there, so a backward pass in "
    "the cell ends at these tensors."
)

BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
"""Before the first line of a cell that has something in it."""


@dataclass
class Execution:
    """A cell on its way through the ranks.

    ``prepare`` reads the cell and packs what it needs; nothing has started then.
    ``start`` launches the ranks, ``over`` tells when they are gone, ``finish`` brings
    the results home.  ``value`` is the cell's last line's, afterwards.
    """

    source: str
    namespace: dict[str, Any]
    options: RunOptions
    surroundings: Surroundings = field(default_factory=Surroundings)
    tracks: bool = True
    cell: Cell = field(init=False)
    placement: Placement = field(init=False)
    shipment: Shipment = field(init=False)
    batch_line: str = field(init=False, default="")
    value: Any = field(init=False, default=None)
    taken_over: bool = field(init=False, default=False)
    _places: dict[str, Place] = field(init=False, default_factory=dict)
    _run: Run | None = field(init=False, default=None)
    _words: EventWriter | None = field(init=False, default=None)
    _client: LaunchClient | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Take off what IPython does, so that its line numbers are those of ``source``."""
        self.source = BLANK_LINES.sub("", self.source)

    def prepare(self) -> None:
        """Read the cell, choose devices and pack the bundle.

        Raises:
            SyntaxError, UnknownNameError: the cell cannot run anywhere.
            OptionError: the machine does not have what was asked for.
            StrategyError: the strategy cannot train with these options.
            ShippingError: a value cannot be sent to the ranks.
        """
        self.cell = read_cell(self.source, self.namespace, self.surroundings.transform)
        self._check_strategy()
        self.placement = place_ranks(self.options, probe())
        names = {n: self.namespace[n] for n in self.cell.reads if n in self.namespace}
        header = SentHeader(
            random=random_state.capture(),
            settings=torch_settings.capture(),
            verbosity=logging_state.capture(),
            tracked=tracker_run.capture(self.tracks),
            sources=self.surroundings.sources(),
            execution_count=self.surroundings.cell_number,
        )
        self.shipment = ship(names, self.namespace, header)
        self.batch_line = batch_line(names.values(), self.options, self.placement.world_size)

    def _patches(self) -> list[str]:
        """Return what the notebook has put into libraries, and the cell does not itself."""
        names = ((name, name.rpartition(".")[2]) for name in self.shipment.patches)
        return [name for name, last in names if not re.search(rf"\.{last}\s*=", self.source)]

    def _check_strategy(self) -> None:
        profile = profile_of(self.options.strategy)
        if lack := lack_of(profile):
            what = f"Strategy {profile.name} needs {lack.needed}"
            raise OptionError(compose(what, instead=f"%pip install {lack.install}"))
        if profile.check is not None:
            profile.check(self.options)

    def start(self) -> Run:
        """Launch the ranks, and write the bundle that they wait for.

        Raises:
            LaunchError: there is no room for the bundle, or no launch server.
        """
        try:
            return self._launched()
        except BaseException:
            self._free()
            raise

    def _launched(self) -> Run:
        run_id = new_run_id()
        folder = runs_root() / run_id
        self._places["bundle"] = bundle = self.shipment.find_room(folder)
        results = []
        for rank in range(self.placement.world_size):
            name = f"result-{rank}"
            self._places[name] = shelf.take(folder, name, self.shipment.nbytes)
            results.append(self._places[name])
        self._run = run = Run.create(self._record(run_id, bundle, results), self.source)
        self._words = EventWriter(run.events_path("kernel"), KERNEL)
        detached = ", ".join(f"`{name}`" for name in self.shipment.detached)
        patches = ", ".join(f"`{name}`" for name in self._patches())
        notices = {
            "devices": self.placement.notice,
            "bundle": bundle.notice,
            "detached": detached and DETACHED.format(detached),
            "patches": patches and PATCHES.format(patches),
        }
        for topic, text in notices.items():
            if text:
                self._note(topic, text)
        self._client = launch_client()
        try:
            self._client.launch(run)
            self.shipment.write(bundle, run_id)  # meanwhile the ranks find one another
            self._client.preload(self._modules_ahead())
        except LaunchError as error:
            self._say(Ended, ending="failed", detail=str(error))
            raise
        except BaseException:  # ranks that wait for the bundle must not do so for ever
            self.abandon()
            raise
        return run

    def _modules_ahead(self) -> tuple[str, ...]:
        """Return what ranks with these options import; the next run's will have it."""
        modules = profile_of(self.options.strategy).modules
        return (*modules, *COMPILER) if self.options.compile else modules

    def _record(self, run_id: str, bundle: Place, results: list[Place]) -> RunRecord:
        options, process = self.options, psutil.Process()
        return RunRecord(
            id=run_id,
            created=time.time(),
            strategy=options.strategy,
            devices=list(self.placement.devices),
            batch=options.batch,
            seed=options.seed,
            timeout=options.timeout,
            fresh=options.fresh,
            cwd=os.getcwd(),
            sys_path=[path for path in sys.path if isinstance(path, str)],  # as Python has it
            bundle=bundle.path,
            results=[result.path for result in results],
            kernel_pid=process.pid,
            kernel_create_time=creation_time(process.pid),
            notebook=self.surroundings.notebook,
            threads=self.placement.threads,
            batch_line=self.batch_line,
            options=dataclasses.asdict(options),
        )

    @property
    def run(self) -> Run:
        """The run, once ``start`` has been called."""
        assert self._run is not None
        return self._run

    @property
    def over(self) -> bool:
        """Whether every rank is gone, or none will ever come."""
        if self.run.over:
            return True
        if self.run.view.launcher is not None or self._client is None or self._client.alive:
            return False
        detail = f"The launch server has ended.\n{self._client.errors()}".rstrip()
        self._say(Ended, ending="failed", detail=detail)
        return self.run.over

    def interrupt(self) -> None:
        """Stop the run so that partial results come back; the second time, at once."""
        if self._run is None:
            raise KeyboardInterrupt  # nothing has started
        self.run.stop(force=self.run.is_asked_to_stop)

    def finish(self) -> None:
        """Put what came back into the notebook, and free what the run has held.

        Raises:
            BaseException: what the cell raised in a rank; see ``nbmgpu.runs.failure``.
            ResultsError: the cell ran to its end, and its results are lost.
        """
        broken: Exception | None = None
        try:
            returns = Returns(self.run, self.shipment, self.namespace, self.options, self._note)
            self.value = returns.take()
        except Exception as error:
            broken = error  # what ended the run comes first
        finally:
            self._free()
            write_digest(self.run)  # all of it is read here: lists need not do so again
        cause = exception_of(self.run) or broken
        if cause is not None:
            raise cause

    def abandon(self) -> None:
        """End a run that cannot be watched any more; nothing comes back."""
        try:
            if not self.run.over:
                self.run.stop(force=True)
                self.run.wait(timeout=5)
        finally:
            self._free()

    def _free(self) -> None:
        in_use = self._run is not None and not self._run.over  # by ranks that would not end
        while self._places:
            name, place = self._places.popitem()
            place.close() if in_use else shelf.give_back(name, place)
        if self._run is not None:
            with suppress(OSError):  # a full disk, or somebody has removed the folder
                (self._run.folder / COLLECTED_FILE).touch()
        if self._words is not None:
            self._words.close()
        self.shipment.release()

    def _note(self, topic: str, text: str) -> None:
        self._say(Notice, topic=topic, text=text)

    def _say(self, kind: type[Event], **fields: Any) -> None:
        if self._words is not None:
            self._words.emit(kind, **fields)
