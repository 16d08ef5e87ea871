"""One run of a cell: read it, serialize what it needs, launch, monitor, write the results back."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbmgpu.cell import Cell, read_cell
from nbmgpu.cell.loop_targets import loop_targets
from nbmgpu.cell.source import LEADING_BLANK_LINES
from nbmgpu.devices.requirements import missing_requirement
from nbmgpu.engines.registry import get_engine
from nbmgpu.environment.headers import BundleHeader
from nbmgpu.errors import LaunchError, OptionError, format_message
from nbmgpu.options.model_parallelism import with_plan
from nbmgpu.options.run_options import RunOptions
from nbmgpu.patches.versions import untested_notice
from nbmgpu.report.digest import write_digest
from nbmgpu.runs import replacement
from nbmgpu.runs.failure import exception_of, stopped_before
from nbmgpu.runs.folder import new_run_id, runs_root
from nbmgpu.runs.held_ranks import are_held
from nbmgpu.runs.number_topics import SAME_WORK
from nbmgpu.serialization import Bundle, serialize
from nbmgpu.serialization.device_memory import restore_waiting
from nbmgpu.strategies import profile_of
from nbmgpu.strategies.mesh_sizes import format_mesh, strategy_sizes
from nbmgpu.strategies.profiles import COMPILER_MODULES
from nbmgpu.trackers import registry as trackers

from . import held_ranks, notices
from .batch_size import batch_line
from .launched_run import LaunchedRun, began
from .notebook_context import NotebookContext
from .resumed_options import (
    earlier_curves,
    options_after_failure,
    reason_to_restart,
    with_checkpoint,
)
from .run_record import new_record
from .write_back import RankZeroResult, WriteBack

if TYPE_CHECKING:
    from nbmgpu.devices.placement import Placement
    from nbmgpu.engines.base import Engine
    from nbmgpu.runs.run import Run

    from .held_ranks import HeldRanks


@dataclass
class Execution:
    """One cell, from its source to the results in the notebook.

    ``prepare`` reads the cell and serializes what it needs; it starts nothing.  ``start`` launches
    the ranks, ``over`` is true when they have ended, ``finish`` writes the results back.

    Attributes:
        source: the cell.
        namespace: the notebook's names.
        options: the options of the run.
        context: the IPython shell that the cell is run from.
        tracks: whether the cell logs to experiment trackers.
        held: ranks that go on with this cell; None to start new ones.
        cell, placement, bundle: set by ``prepare``.
        value: of the cell's last line; set by ``finish``.
        taken_over: whether another call (``attach``) writes the results back.
    """

    source: str
    namespace: dict[str, Any]
    options: RunOptions
    context: NotebookContext = field(default_factory=NotebookContext)
    tracks: bool = True
    held: HeldRanks | None = None
    cell: Cell = field(init=False)
    placement: Placement = field(init=False)
    bundle: Bundle = field(init=False)
    value: Any = field(init=False, default=None)
    taken_over: bool = field(init=False, default=False)
    _engine: Engine = field(init=False)
    _launched: LaunchedRun | None = field(init=False, default=None)
    _continuation: dict[str, str] = field(init=False, default_factory=dict)  # notices by topic

    def __post_init__(self) -> None:
        """Get the engine; drop leading blank lines as IPython does, to keep line numbers equal."""
        self.source = LEADING_BLANK_LINES.sub("", self.source)
        self._engine = get_engine(self.options.engine, self.options.detach)

    def prepare(self) -> None:
        """Read the cell, choose devices and serialize the bundle.

        Raises:
            SyntaxError, UnknownNameError: the cell cannot run anywhere.
            OptionError: the engine does not have the requested devices, or nothing is to resume.
            CheckpointError: what is to resume is damaged.
            StrategyError: the strategy cannot train with these options.
            SerializationError: a value cannot be sent to the ranks.
        """
        restore_waiting()
        held = self.held
        visible = held_ranks.visible_names(held, self.namespace)
        self.cell = read_cell(self.source, visible, self.context.transform)
        self.options = with_plan(self.options, self.namespace)
        resumed = with_checkpoint(self.options, self.source, self.context.notebook)
        self.options, self._continuation["resumed"] = resumed.options, resumed.notice
        self._check_strategy()
        self.placement = self._engine.place(self.options) if held is None else held.placement
        names = held_ranks.names_to_send(held, self.cell.reads, self.namespace)
        self._complete_mesh()
        header = BundleHeader.capture(
            trackers.capture(self.tracks), self.context.sources(), self.context.cell_number
        )
        self.bundle = serialize(names, self.namespace, header, held.to_send() if held else None)

    @property
    def batch_line(self) -> str:
        """How ranks share the batch; empty if the cell reads no loader."""
        values = [self.namespace[n] for n in self.cell.reads if n in self.namespace]
        return batch_line(values, self.options, self.placement.world_size)

    def _complete_mesh(self) -> None:
        """Check ``--mesh``, and let it name all dimensions, in the order of the device mesh."""
        profile = profile_of(self.options.strategy)
        sizes = strategy_sizes(profile, self.placement.world_size, self.options)
        if self.options.mesh or sum(size > 1 for size in sizes.values()) > 1:
            words = format_mesh(sizes).split(",")
            self.options = dataclasses.replace(self.options, mesh=tuple(words))

    def _check_strategy(self) -> None:
        profile = profile_of(self.options.strategy)
        if missing := missing_requirement(profile):
            what = f"Strategy {profile.name} needs {missing.needed}"
            raise OptionError(format_message(what, instead=f"%pip install {missing.install}"))
        if profile.check is not None:
            profile.check(self.options)

    def start(self) -> Run:
        """Launch the ranks, and write the bundle that they wait for.

        Raises:
            LaunchError: there is no space for the bundle, or the engine cannot start ranks.
        """
        run_id = new_run_id()
        try:
            storage = self._engine.allocate(
                runs_root() / run_id, self.bundle.nbytes, self.placement.world_size
            )
            self._launched = LaunchedRun.create(
                new_record(self, run_id, storage, began(self._launched)),
                self.source,
                self._engine,
                storage,
            )
            if self.options.keep_start:
                from .cell_export import keep_start_of  # which imports torch

                keep_start_of(self)
            self._launched.start(
                self.bundle,
                self._notices(storage.bundle.notice),
                self._imports_of_strategy(),
                self.held.run if self.held else None,
            )
            self._launched.continue_curves(earlier_curves(self.options))
            if self.held is None and self.options.waits_here and self.placement.on_accelerators:
                self._launched.free_device_memory(self.bundle)
        except BaseException:
            self._release()
            raise
        return self.run

    def _notices(self, bundle_notice: str) -> dict[str, str]:
        """Return what to report about the launch, by topic; usually empty texts."""
        detached = ", ".join(f"`{name}`" for name in self.bundle.detached)
        return {
            "devices": self.placement.notice,
            "bundle": bundle_notice,
            "transfer": notices.transfer(self.bundle) if self._engine.crosses_network else "",
            "detached": detached and notices.DETACHED.format(detached),
            "patches": notices.patched_libraries(self.bundle.overrides, self.source),
            "library-version": untested_notice(),
            "outlives-kernel": notices.outlives_kernel(self.options, self.run.id),
            **self._continuation,
        }

    def _imports_of_strategy(self) -> tuple[str, ...]:
        """Return the modules that ranks import with these options; the next run's have them."""
        modules = profile_of(self.options.strategy).modules
        return (*modules, *COMPILER_MODULES) if self.options.compile else modules

    @property
    def run(self) -> Run:
        """The run, once ``start`` has been called."""
        return self._launched_run.run

    @property
    def over(self) -> bool:
        """Whether every rank has ended, or none will ever start."""
        return self._launched_run.over

    @property
    def _launched_run(self) -> LaunchedRun:
        assert self._launched is not None
        return self._launched

    def sync(self) -> None:
        """Let the engine copy new events and logs to this machine."""
        self._launched_run.sync()

    def interrupt(self) -> None:
        """Stop the run and write partial results back; a second call kills it at once."""
        if self._launched is None:
            raise stopped_before("its ranks had started")
        self.run.stop(force=self.run.is_asked_to_stop)

    @property
    def is_to_resume(self) -> bool:
        """Whether the cell starts again from a checkpoint, as a rank was killed, or hung."""
        return bool(reason_to_restart(self.options, self.run))

    @property
    def is_to_restart(self) -> bool:
        """Whether the cell starts again with whole batches, as its numbers would differ."""
        return bool(self.run.view.restart_reason)

    def discard(self) -> None:
        """End a run that is to restart, and remove it; nothing of it is written back.

        Raises:
            KeyboardInterrupt: it was asked to stop.
            LaunchError: its ranks do not end, or what it has written cannot be undone.
        """
        is_stopped = self.run.is_asked_to_stop
        try:
            self._launched_run.discard()
        except OSError as error:
            self.bundle.release()
            raise LaunchError(f"The cell has stopped, as it cannot start again: {error}") from error
        if is_stopped:
            self.bundle.release()
            raise stopped_before("it had started again")
        if not self.over:
            raise LaunchError("The ranks of the first start do not end, so the cell has stopped.")

    def restart(self) -> Run:
        """Start the cell again with ``--exact always``, as a run that replaces a discarded one.

        The ranks get the same bundle.

        Raises:
            LaunchError: see ``start``.
        """
        first = self.run
        self.options = dataclasses.replace(self.options, exact="always")
        reason = first.view.restart_reason
        text = notices.RESTARTED_TO_DIVIDE if reason == SAME_WORK else notices.RESTARTED
        self._continuation["restarted"] = text.format(
            seconds=time.time() - first.record.created, reason=reason
        )
        return self.start()

    def resume(self) -> Run:
        """Start the cell again from its newest checkpoint, after a rank was killed, or hung.

        Raises:
            LaunchError: see ``start``.
        """
        failed = self.run
        self.sync()  # the engine may know by now why, and removes what is left of the run
        if not replacement.claim(failed):
            return self._follow(failed)
        self._launched_run.release(reusable=False)  # rank 0 may have written into the bundle
        write_digest(failed)
        self._continuation["restarted"] = reason_to_restart(self.options, failed)
        resumed = options_after_failure(self.options, failed)
        self.options, self._continuation["resumed"] = resumed.options, resumed.notice
        try:
            run = self.start()
        except BaseException:
            replacement.withdraw(failed)
            raise
        replacement.publish(failed, run)
        return run

    def _follow(self, failed: Run) -> Run:
        """Go on with the run that its launcher has started in place of ``failed``.

        Raises:
            LaunchError: the launcher cannot start it.
        """
        run = replacement.wait_for_replacement(failed)
        self._launched_run.release(reusable=False)
        self._launched = LaunchedRun.of(run, self._engine)
        self.options = RunOptions(**run.record.options.values)
        return self.run

    def finish(self) -> None:
        """Write the results back into the notebook, and release the run's resources.

        Raises:
            BaseException: what the cell raised in a rank; see ``nbmgpu.runs.failure``.
            ResultsError: the cell finished, but its results are lost.
        """
        broken: Exception | None = None
        result: RankZeroResult | None = None
        try:
            self.sync()
            self._launched_run.restore_device_memory()
            result = WriteBack(
                self.run,
                self.bundle,
                self.namespace,
                self.options,
                loop_targets(self.cell.code),
                self._launched_run.notice,
            ).apply()
            self.value = result.value
        except Exception as error:
            broken = error  # an exception of the run takes precedence
        finally:
            if text := held_ranks.keep(self, result):
                self._launched_run.notice("held", text)
            result = None  # an exception keeps this frame, and with it what the cell returned
            self._release(reusable=not are_held(self.run.folder))
            write_digest(self.run)  # lists of runs then need not read all events
        if (cause := exception_of(self.run) or broken) is not None:
            raise cause

    def abandon(self) -> None:
        """Kill the ranks of a run that cannot be monitored any more; nothing is written back."""
        try:
            self._launched_run.abandon()
        finally:
            self.bundle.release()

    def _release(self, reusable: bool = True) -> None:
        if self._launched is not None:
            self._launched.release(reusable)
        self.bundle.release()
