"""One run as the kernel lives it: read the cell, ship, launch, watch, take back."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from . import rng, settings, verbosity
from .agreement import differing
from .batches import batch_line
from .bundle import VALUE, Shipment, adopt, read_copies, ship
from .bundle.place import Place, shelf
from .cell import Cell, read_cell
from .devices import Placement, place, probe, torch_build
from .errors import LaunchError, OptionError, compose
from .events import KERNEL, Ended, EventWriter, Notice
from .failure import exception_of
from .launch.local import LaunchServer, server
from .options import RunOptions
from .report.digest import write_digest
from .run import COLLECTED_FILE, STOP_FILE, Run, RunRecord, new_run_id, runs_root
from .sizes import in_words
from .strategies import missing_packages, profile_of
from .strategies.catalogue import COMPILER
from .surroundings import Surroundings

DETACHED = (
    "{}: computed in the notebook with gradients; the graph stays there, so a backward pass in "
    "the cell ends at these tensors."
)

BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
"""Before the first line of a cell that has something in it."""

POLL = 0.05
"""Seconds between looks at what the ranks have said."""


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
    cell: Cell = field(init=False)
    placement: Placement = field(init=False)
    shipment: Shipment = field(init=False)
    run: Run = field(init=False)
    value: Any = field(init=False, default=None)
    taken_over: bool = field(init=False, default=False)

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
        self.placement = place(self.options, probe())
        names = {n: self.namespace[n] for n in self.cell.reads if n in self.namespace}
        header = {
            "random": rng.capture(),
            "settings": settings.capture(),
            "verbosity": verbosity.capture(),
            **self.surroundings.header(),
        }
        self.shipment = ship(names, self.namespace, header)
        self.batch_line = batch_line(names.values(), self.options, self.placement.world_size)

    def _check_strategy(self) -> None:
        name, profile = self.options.strategy, profile_of(self.options.strategy)
        if missing := missing_packages(name):
            what = f"Strategy {name} needs {' and '.join(missing)}, which is not installed here"
            raise OptionError(compose(what, instead=f"%pip install {' '.join(missing)}"))
        least = profile.least_torch
        build = torch_build() if any(least) else None
        if build is not None and build.release < least:
            wanted = ".".join(map(str, least))
            what = f"Strategy {name} needs torch {wanted} or newer, and this is {build.version}"
            raise OptionError(compose(what, instead=f"%pip install 'torch>={wanted}'"))
        if profile.check is not None:
            profile.check(self.options)

    def start(self) -> Run:
        """Write the bundle and launch the ranks.

        Raises:
            LaunchError: there is no room for the bundle, or no launch server.
        """
        self._places: dict[str, Place] = {}
        try:
            return self._launched()
        except BaseException:
            self._free()
            raise

    def _launched(self) -> Run:
        run_id = new_run_id()
        folder = runs_root() / run_id
        self._places["bundle"] = bundle = self.shipment.write(folder)
        results = []
        for rank in range(self.placement.world_size):
            name = f"result-{rank}"
            self._places[name] = shelf.take(folder, name, self.shipment.nbytes)
            results.append(self._places[name])
        self.run = Run.create(self._record(run_id, bundle, results), self.source)
        self._words = EventWriter(self.run.folder / "events" / "kernel.jsonl", KERNEL)
        detached = ", ".join(f"`{name}`" for name in self.shipment.detached)
        notices = {
            "devices": self.placement.notice,
            "bundle": bundle.notice,
            "detached": detached and DETACHED.format(detached),
        }
        for topic, text in notices.items():
            if text:
                self._note(topic, text)
        self._server: LaunchServer = server()
        try:
            self._server.launch(self.run)
            self._server.preload(self._modules_ahead())
        except LaunchError as error:
            self._words.emit(Ended, ending="failed", detail=str(error))
            raise
        return self.run

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
            sys_path=list(sys.path),
            bundle=bundle.path,
            results=[result.path for result in results],
            kernel_pid=process.pid,
            kernel_create_time=process.create_time(),
            notebook=self.surroundings.notebook,
            threads=self.placement.threads,
            batch_line=self.batch_line,
            options=dataclasses.asdict(options),
        )

    @property
    def over(self) -> bool:
        """Whether every rank is gone, or none will ever come."""
        run = self.run
        if not run.over and run.view.launcher is None and not self._server.alive:
            detail = f"The launch server has ended.\n{self._server.errors()}".rstrip()
            self._words.emit(Ended, ending="failed", detail=detail)
        return run.over

    def interrupt(self) -> None:
        """Stop the run so that partial results come back; the second time, at once."""
        self.run.stop(force=(self.run.folder / STOP_FILE).exists())

    def finish(self) -> None:
        """Put what came back into the notebook, and free what the run has held.

        Raises:
            BaseException: what the cell raised in a rank; see ``nbmgpu.failure``.
        """
        broken: Exception | None = None
        try:
            self._adopt()
            self._read_others()
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
        if not self.run.over:
            self.run.stop(force=True)
            self.run.wait(timeout=5)
        self._free()

    def _free(self) -> None:
        in_use = hasattr(self, "run") and not self.run.over  # by ranks that would not end
        while self._places:
            name, place = self._places.popitem()
            place.close() if in_use else shelf.give_back(name, place)
        if hasattr(self, "run"):
            with suppress(OSError):  # a full disk, or somebody has removed the folder
                (self.run.folder / COLLECTED_FILE).touch()
        if hasattr(self, "_words"):
            self._words.close()

    def _adopt(self) -> None:
        try:
            returned = adopt(self.run.record.results[0], self.shipment)
        except (OSError, ValueError) as error:
            if self.run.state == "finished":  # else the failure says why there is no result
                self._note("no-results", f"Nothing came back: {error}.")
            return
        for name, reason in {**returned.lost, **returned.refused}.items():
            what = "The value of the last line" if name == VALUE else f"`{name}`"
            self._note(f"lost:{name}", f"{what} did not come back: {reason}.")
        values = dict(returned.values)
        self.value = values.pop(VALUE, None)
        wanted = self.options.pull
        bound = {n: v for n, v in values.items() if wanted is None or n in wanted}
        self._note_missing(wanted or (), values)
        before = {name: self.namespace.get(name) for name in bound}
        self.namespace.update(bound)
        for name in returned.header["deleted"]:
            self.namespace.pop(name, None)
        rng.restore(returned.header["random"])
        self.run.results[0] = {n: v for n, v in bound.items() if before[n] is not v} | (
            {VALUE: self.value} if VALUE in returned.values else {}
        )

    def _note_missing(self, wanted: Iterable[str], values: dict[str, Any]) -> None:
        for name in wanted:
            if name not in values:
                self._note(f"missing:{name}", f"--pull {name}: the cell did not bind `{name}`.")

    def _read_others(self) -> None:
        """Read what the other ranks hold, and say which values are rank 0's alone."""
        for rank, path in enumerate(self.run.record.results[1:], start=1):
            try:
                self.run.results[rank] = read_copies(path, self.namespace)
            except (OSError, ValueError):
                continue
        if self.run.state != "finished":
            return  # ranks that stopped somewhere differ for that reason
        unsure = self.options.strategy == "none" or "reads-ahead" in self.run.view.notices
        if self.run.view.walked_apart and not unsure:
            self._note("walked-apart", WALKED_APART)
        elif self.run.view.chose_apart and not unsure:
            self._note("branches", BRANCHES)
        own = self.run.results.get(0, {})
        others = [values for rank, values in self.run.results.items() if rank]
        names = differing({n: v for n, v in own.items() if n != VALUE}, others)
        if names and self.options.strategy != "none":
            listed = ", ".join(f"`{name}`" for name in names)
            self._note(
                "rank-0-values",
                f"{listed}: rank 0's own value, other ranks hold another (their share of the "
                "data, or their clock). All of them: nbmgpu.last_run.results",
            )

    def _note(self, topic: str, text: str) -> None:
        self._words.emit(Notice, topic=topic, text=text)


WALKED_APART = (
    "Ranks trained on different batches: the cell left some out by what is in them, and each rank "
    "sees its own share only. So steps were not one device's. Leave batches out by their number, "
    "or multiply the loss by 0 instead."
)


BRANCHES = (
    "In a step the losses of some ranks were means and those of others sums: the cell chooses the "
    "loss by what is in the batch, and each rank sees its own share only. So the step was not one "
    "device's. Multiply by a mask, which gives 0 where nothing is left, instead of an `if`."
)


def plan_text(execution: Execution) -> str:
    """Say what a prepared execution would do (``--dry-run``)."""
    placement, cell, shipment = execution.placement, execution.cell, execution.shipment
    width = max((len(name) for name in shipment.sizes), default=0)
    shipped = [f"  {name:<{width}}  {in_words(size):>10}" for name, size in shipment.sizes.items()]
    options = execution.options
    back = [n for n in cell.writes if options.pull is None or n in options.pull]
    stars = [f"all of {module}" for module in cell.star_imports]
    lines = [
        f"{options.command}",
        f"ranks        {placement.world_size} on {', '.join(placement.devices)}",
        *([placement.notice] if placement.notice else []),
        f"batch        {execution.batch_line or 'no DataLoader among what the cell reads'}",
        f"shipped      {in_words(shipment.nbytes)} in all"
        + ("; what is shared counts once" if shipped else ""),
        *shipped,
        f"comes back   {', '.join([*back, *stars]) or 'nothing is assigned'}",
        "             and the state of every object above that the cell changes",
        "Nothing was started.",
    ]
    return "\n".join(lines)
