"""Prepares a rank: process group, strategy, patches, shell, and the objects of the notebook."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits

from nbmgpu.environment import library_settings, logging_state, random_state, torch_settings
from nbmgpu.options.profile_options import ProfiledSteps
from nbmgpu.serialization import load_bundle
from nbmgpu.strategies import StrategyOptions, strategy_for
from nbmgpu.strategies.base import RankContext
from nbmgpu.strategies.communication import counter
from nbmgpu.strategies.mesh import RankMesh
from nbmgpu.trackers import registry as trackers

from . import current, frameworks
from .after_import import after_import
from .checkpoints.checkpointer import checkpointer_of
from .data.shared_batches import SharedBatches
from .device import enter_device
from .files import writes
from .interrupts import SynchronizedInterruptHandler
from .metrics import tqdm_progress
from .metrics.memory import MemoryUsage
from .peers import peers_of
from .rank_info import RankInfo
from .reference.step_file import StepWriter, step_writer_of
from .reporting.shard_topics import EXACT, OF_SHARDS, OTHER_NUMBERS
from .restart import RestartRequest
from .rng.seeding import SeedSource
from .session import TrainingSession, make_session
from .shell import RankShell, make_shell
from .source_analysis.notebook_code import NotebookCode
from .store import desync, run_store
from .training import user_hooks
from .training.backward import BackwardPatch
from .training.optimizer_registry import OptimizerRegistry
from .training.optimizer_steps import StepPatch
from .undivided_steps import UndividedSteps

if TYPE_CHECKING:
    from nbmgpu.environment.headers import BundleHeader
    from nbmgpu.runs.record import RunRecord
    from nbmgpu.runs.run import Run
    from nbmgpu.serialization import ReceivedBundle
    from nbmgpu.strategies.base import Strategy

    from .checkpoints.checkpointer import Checkpointer
    from .metrics.heartbeat import HeartbeatThread
    from .profiling.step_profiler import StepProfiler
    from .rank_environment import RankEnvironment
    from .reporting.recorder import Recorder


@dataclass(frozen=True)
class PreparedRank:
    """A rank that is ready to run its cell.

    Attributes:
        run: the run.
        session: the parts of the training session.
        shell: runs the cell.
        received: the objects of the notebook.
        files: the patch by which rank 0 writes the cell's files.
        step_patch: the patch of optimizer steps.
        backward_patch: the patch of backward passes.
        interrupts: lets ranks stop at the same step; None where each one may stop by itself.
        memory_usage: memory used since just before the objects were loaded.
        checkpointer: writes checkpoints and resumes from one; None without these options.
        profiler: profiles some steps; None without the option.
        step_writer: records gradients for the reference; None if there is none.
    """

    run: Run
    session: TrainingSession
    shell: RankShell
    received: ReceivedBundle
    files: writes.FilePatch
    step_patch: StepPatch
    backward_patch: BackwardPatch
    interrupts: SynchronizedInterruptHandler | None
    memory_usage: MemoryUsage
    checkpointer: Checkpointer | None
    profiler: StepProfiler | None
    step_writer: StepWriter | None


def prepare(
    run: Run,
    environment: RankEnvironment,
    recorder: Recorder,
    log: Path,
    heartbeat: HeartbeatThread,
) -> PreparedRank:
    """Prepare everything that the cell needs, in order.

    Libraries are patched before the notebook's objects are loaded, which may import them.
    """
    record, rank = run.record, environment.rank
    device = enter_device(record, rank)
    registry = OptimizerRegistry()
    registry.install()
    # Before ranks synchronize: folders that appear from now on may be another rank's.
    files = writes.FilePatch(rank, run.folder)
    join_process_group(record, environment, device)
    shell = make_shell(recorder.events, recorder, log, rank)
    session = open_session(record, rank, device, recorder, registry)
    follow_run(run, session, shell, heartbeat)
    progress = session.progress
    interrupts = _synchronize_interrupts(session, run.folder)
    step_patch, backward_patch = install_patches(session, interrupts, f"{run.id} {record.created}")
    current.metrics_log = session.metrics
    current.shared_batches = SharedBatches(session.loaders.context, session.loaders)
    received, memory_usage = receive(run, session, shell, files)
    if (checkpointer := checkpointer_of(run, session, shell, files.saves)) is not None:
        checkpointer.install()
    step_writer = step_writer_of(run.folder, session.strategy, progress)
    if step_writer is not None:
        step_patch.observe = session.losses.batch_dependence.unobserved(step_writer.observe)
    if record.options.may_restart and session.rank_info.splits_batches:
        peers = peers_of(run, environment)
        recorder.restart = RestartRequest(recorder.events, run.folder, peers)
        UndividedSteps(progress, recorder.restart, record.world_size).install()
    return PreparedRank(
        run,
        session,
        shell,
        received,
        files,
        step_patch,
        backward_patch,
        interrupts,
        memory_usage,
        checkpointer,
        start_profiler(run, session, backward_patch),
        step_writer,
    )


def start_profiler(
    run: Run, session: TrainingSession, backward_patch: BackwardPatch
) -> StepProfiler | None:
    """Return what profiles the steps of a cell that begins now; None without the option."""
    if (steps := run.record.options.values.get("profile")) is None:
        return None
    from .profiling.step_profiler import StepProfiler

    profiler = StepProfiler(ProfiledSteps.parse(steps), session, backward_patch, run.folder)
    profiler.start()
    return profiler


def follow_run(
    run: Run, session: TrainingSession, shell: RankShell, heartbeat: HeartbeatThread
) -> None:
    """Let what reads the cell or the events of a run read those of ``run``."""
    session.losses.diagnostics.size_inference.load_code = lambda: NotebookCode.from_cell(
        run.cell, shell.user_ns
    )
    session.losses.batch_dependence.step_values.begin_cell(shell.user_ns)
    progress = session.progress
    heartbeat.follow(progress, session.metrics.timer)
    desync.detector = desync.DesyncDetector(
        run.events_path("rank-0"), lambda: progress.backwards_begun
    )


def receive(
    run: Run,
    session: TrainingSession,
    shell: RankShell,
    files: writes.FilePatch,
    before: ReceivedBundle | None = None,
) -> tuple[ReceivedBundle, MemoryUsage]:
    """Load the objects and the settings of the notebook, when they are there.

    Args:
        run: the run.
        session, shell, files: of the rank.
        before: the last bundle that it has loaded, if it is held.

    Returns:
        The bundle, and what measures memory since just before it was loaded.
    """
    record, memory_usage = run.record, MemoryUsage()
    received = load_bundle(
        record.storage.bundle,
        shell.user_ns,
        session.strategy.device,
        run.id,
        partial(_apply_header, session),
        before,
    )
    if session.step_options.limit.on:
        memory_usage.exclude_loaded_data()
    _restore_environment(record, received.header, shell)
    session.settings.begin_cell()
    if session.rank_info.shards_data:
        _write_on_rank_0(files, shell, session)
    return received, memory_usage


def join_process_group(record: RunRecord, environment: RankEnvironment, device: str) -> None:
    """Initialize the process group of all ranks."""
    run_store.register()
    dist.init_process_group(
        backends(device, shared=record.ranks_share_devices),
        environment.init_method,
        rank=environment.rank,
        world_size=record.world_size,
    )
    counter.install()


def backends(device: str, shared: bool) -> str:
    """Return the backends of the process group, by the type of the tensors.

    Args:
        device: of this rank.
        shared: whether ranks share devices.  NCCL refuses it: "Duplicate GPU detected".
    """
    kind = device.partition(":")[0]
    own = dist.get_default_backend_for_device(kind)
    return "gloo" if shared or own == "gloo" else f"cpu:gloo,{kind}:{own}"


def open_session(
    record: RunRecord, rank: int, device: str, recorder: Recorder, registry: OptimizerRegistry
) -> TrainingSession:
    """Make the strategy, and the parts of the session of ``rank``."""
    strategy = _make_strategy(record, rank, device, recorder)
    rank_info = RankInfo(
        rank,
        record.world_size,
        strategy.dp_rank,
        strategy.dp_size,
        "per-rank" if record.options.batch == "per-rank" else "global",
        shards_data=record.world_size > 1 and strategy.profile.shards_data,
        dp_group=strategy.dp_group,
    )
    if rank_info.shards_data and not rank_info.splits_batches:
        recorder.ignore(OF_SHARDS)
    elif "exact" in strategy.profile.options.supported and rank_info.batch == "global":
        recorder.suggest(OTHER_NUMBERS, EXACT)
    steps, repeated = record.options.values.get("steps"), record.options.repeated
    return make_session(rank_info, strategy, recorder, registry, steps, repeated)


def _make_strategy(record: RunRecord, rank: int, device: str, recorder: Recorder) -> Strategy:
    options = StrategyOptions.from_mapping(record.options.values)
    strategy = strategy_for(record.options.strategy, options)
    shape = strategy.mesh_shape(record.world_size, options)
    mesh = RankMesh(shape, rank, record.world_size, device)
    return strategy(RankContext(rank, record.world_size, mesh, device, options, recorder.notice))


def _synchronize_interrupts(
    session: TrainingSession, folder: Path
) -> SynchronizedInterruptHandler | None:
    """Let all ranks stop at the same step if they hold shards of one model."""
    if not (session.rank_info.shards_data and session.strategy.shards_state):
        return None
    interrupts = SynchronizedInterruptHandler(folder, session.rank_info.rank)
    interrupts.install()
    return interrupts


def install_patches(
    session: TrainingSession, interrupts: SynchronizedInterruptHandler | None, seed: str
) -> tuple[StepPatch, BackwardPatch]:
    """Install the patches of torch and of other libraries.

    Args:
        session: the parts that the patches act on.
        interrupts: checked before each backward pass.
        seed: the same on all ranks of a run, and another one in each run.

    Returns:
        Those of optimizer steps and of backward passes.
    """
    trained, losses, options = session.trained, session.losses, session.step_options
    session.loaders.install()
    if session.rank_info.shards_data:
        SeedSource(session.streams, seed).install()
    before_backward = [
        options.limit.before_backward,
        session.metrics.timer.begin_backward,
        trained.prepare_new,
        *([interrupts.synchronize] if interrupts is not None else []),
        session.loader_events.current_batch.begin_backward,
    ]
    backward_patch = BackwardPatch(
        session.rank_info,
        session.progress,
        trained,
        options.accumulation,
        losses,
        session.metrics,
        session.recorder,
        before_backward,
    )
    backward_patch.install()
    user_hooks.install(session.progress, session.recorder)
    step_patch = StepPatch(trained, options, losses.diagnostics, session.metrics)
    step_patch.install()
    tqdm_progress.install(session.recorder)
    frameworks.install(session)
    return step_patch, backward_patch


def _apply_header(session: TrainingSession, header: BundleHeader) -> None:
    """Restore what objects may depend on while they are unpickled."""
    logging_state.apply(header.verbosity)
    session.trackers.receive(header.tracked)
    session.modules.receive(header.modules)


def _restore_environment(record: RunRecord, header: BundleHeader, shell: RankShell) -> None:
    """Restore the settings and random states of the notebook."""
    logging_state.apply(header.verbosity)  # some libraries change it when they are imported
    shell.register_sources(header)
    torch_settings.apply(header.settings)
    for name, settings in header.libraries.items():
        after_import(name, partial(library_settings.apply, {name: settings}))
    if (threads := torch.get_num_threads()) > 1:  # NumPy was imported by a server with one thread
        threadpool_limits(threads, user_api="blas")
    random_state.restore(header.random)
    if record.options.seed is not None:
        random_state.seed(record.options.seed)


def _write_on_rank_0(files: writes.FilePatch, shell: RankShell, session: TrainingSession) -> None:
    """Let files, shell commands and trackers of the cell act once, on rank 0."""
    rank = session.rank_info.rank
    files.install(session.strategy.join_save)
    shell.run_commands_on_rank_0(rank, files.shadows.delete_written)
    if rank:
        trackers.silence()
