"""Runs ``torch.profiler`` during some optimizer steps of a cell, and writes a trace.

A process can have one profiler at a time, and one of the cell's own has precedence: as soon as the
cell makes one, this one ends.  Nothing that goes wrong here reaches the cell.
"""

from __future__ import annotations

import functools
import gzip
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import profiler
from torch.profiler import ProfilerAction, ProfilerActivity

from nbmgpu.environment.accelerator import is_accelerator, memory_allocated
from nbmgpu.errors import format_message
from nbmgpu.formatting import format_count
from nbmgpu.options.profile_options import ProfiledSteps
from nbmgpu.patches import PatchStack
from nbmgpu.rank.training.step_limit import StepLimit
from nbmgpu.runs.folder import trace_path
from nbmgpu.runs.profile_event import StepProfile

from .phases import WrappedMethods, name_phases
from .step_parts import STEP_NAME, step_parts, traced_spans

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nbmgpu.rank.session import TrainingSession
    from nbmgpu.rank.training.backward import BackwardPatch

NOTHING = "--profile {steps}: the cell took {taken}, so that nothing was profiled"

OF_CELL = (
    "--profile: the cell has a profiler of its own, and only one can run at a time. The cell's has "
    "precedence, so that nbmgpu writes no traces."
)
NOT_RECORDED = (
    "--profile: torch's profiler records nothing of {kind} devices. The columns compute and hidden "
    "are empty for that reason, and the column host has what the devices do."
)
FAILED = "--profile has written no trace of rank {rank}: {error}"

GZIP_LEVEL = 6
"""How much traces are compressed, from 1 (fast) to 9."""

LOG_LEVEL = "KINETO_LOG_LEVEL", "99"
"""Keeps what torch's profiler logs about itself (since 2.13) out of the cell's output."""


class StepProfiler:
    """Profiles some optimizer steps of one run of a rank."""

    def __init__(
        self,
        steps: ProfiledSteps,
        session: TrainingSession,
        backward_patch: BackwardPatch,
        folder: Path,
    ) -> None:
        """Prepare to profile ``steps`` of a run.

        Args:
            steps: numbers of the first and the last one.
            session, backward_patch: of the rank; what they do in a step is named in the trace.
            folder: of the run.
        """
        self._steps = steps
        self._session = session
        self._backward_patch = backward_patch
        self._folder = folder
        self._rank = session.rank_info.rank
        self._counter = StepLimit(None, session.progress)
        self._methods = WrappedMethods()
        self._patches = PatchStack()
        self._profiler: Any = None
        self._is_own_call = False

    def start(self) -> None:
        """Begin to count steps; the cell begins now."""
        os.environ.setdefault(*LOG_LEVEL)
        self._patches.wrap("torch.autograd.profiler.profile.__init__", self._watched)
        name_phases(
            self._session.strategy, self._session.loaders, self._backward_patch, self._methods
        )
        self._methods.wrap(self._session.metrics, "record_optimizer_step", self._counted)
        with self._own_call():
            self._profiler = profiler.profile(
                activities=activities(self._session.strategy.device), schedule=self._action
            )
            self._profiler.step_num = 1  # so that traces number steps as nbmgpu does
            self._profiler.start()

    def close(self) -> None:
        """Stop at the end of the cell, and write the trace of steps so far."""
        taken = self._counter.taken
        if self._profiler is not None and taken < self._steps.first:
            self._discard()
            steps = format_count(taken, "optimizer step")
            last = min(taken, 10)
            instead = f"--profile {max(1, last - 5)}-{last}" if taken else ""
            text = format_message(NOTHING.format(steps=self._steps, taken=steps), instead=instead)
            self._session.recorder.notice("not-profiled", text)
        self._finish()

    def _action(self, number: int) -> ProfilerAction:
        """Return what torch's profiler does in step ``number``; it first asks for step 0."""
        number, first, last = max(number, 1), self._steps.first, self._steps.last
        if first <= number <= last:
            return ProfilerAction.RECORD if number < last else ProfilerAction.RECORD_AND_SAVE
        return ProfilerAction.WARMUP if number == first - 1 else ProfilerAction.NONE

    def _counted(self, record: Callable[..., None]) -> Callable[..., None]:
        """Return ``StepMetrics.record_optimizer_step``, after which a step is counted."""

        @functools.wraps(record)
        def counted(optimizer: Optimizer, number: int | None) -> None:
            record(optimizer, number)
            if self._profiler is not None and self._counter.count(optimizer):
                self._end_step()

        return counted

    def _end_step(self) -> None:
        """End a step of the profile, and the profile after its last step."""
        if self._counter.taken >= self._steps.last:
            self._finish()
            return
        with self._own_call():
            self._profiler.step()

    def _watched(self, plain: Callable[..., None]) -> Callable[..., None]:
        """Return what makes a profiler; one of the cell ends this one."""

        @functools.wraps(plain)
        def made(made_profiler: Any, *args: Any, **kwargs: Any) -> None:
            if not self._is_own_call and self._profiler is not None:
                self._discard()
                self._session.recorder.notice("profiler-of-cell", OF_CELL)
            plain(made_profiler, *args, **kwargs)

        return made

    def _finish(self) -> None:
        """Stop the profiler, write what it has recorded, and restore what was wrapped."""
        self._methods.remove()
        self._patches.remove()
        if (stopped := self._profiler) is None:
            return
        self._profiler = None
        with self._own_call():
            stopped.stop()
            self._write(stopped)

    def _discard(self) -> None:
        """Stop the profiler, and write nothing."""
        stopped, self._profiler = self._profiler, None
        with self._own_call():
            stopped.stop()

    def _write(self, stopped: Any) -> None:
        """Write the trace, and emit the parts of a step."""
        first, last = self._steps.first, min(self._counter.taken, self._steps.last)
        device = self._session.strategy.device
        spans = traced_spans(stopped.profiler.kineto_results.events())
        # A cell whose model is on the CPU leaves the device unused.
        if is_accelerator(device) and memory_allocated() and not any(s.on_device for s in spans):
            text = NOT_RECORDED.format(kind=device.partition(":")[0])
            self._session.recorder.notice("device-not-profiled", text)
        parts = step_parts(spans, last - first + 1, is_accelerator(device))
        if parts is None:
            raise RuntimeError("torch's profiler has recorded no step")
        path = trace_path(self._folder, self._rank)
        export(stopped, path, begun=None if last == self._steps.last else last + 1)
        self._session.recorder.events.emit(
            StepProfile,
            first=first,
            last=last,
            nbytes=path.stat().st_size,
            **vars(parts),
        )

    @contextmanager
    def _own_call(self) -> Iterator[None]:
        """Call torch's profiler; report what it raises, and do without it."""
        self._is_own_call = True
        try:
            with self._session.losses.batch_dependence.paused():
                yield
        except Exception as error:  # libraries of a GPU's vendor have errors of their own
            self._profiler = None
            text = FAILED.format(rank=self._rank, error=error)
            self._session.recorder.notice("profiler-failed", text)
        finally:
            self._is_own_call = False


def export(stopped: Any, path: Path, begun: int | None = None) -> None:
    """Write the trace of a profiler to ``path``, which appears when it is complete.

    A step that has ``begun``, and that the cell has not taken, is no step of the trace; what the
    cell has done after the last one is in it.

    torch would write it to a temporary file first, which counts as an effect of the cell that
    cannot be undone where the cell is to start again; it also compresses as well as gzip can, which
    takes longer.
    """
    plain, packed = path.with_name(f".{path.stem}"), path.with_name(f".{path.name}")
    try:
        stopped.export_chrome_trace(str(plain))
        if begun is not None:
            plain.write_bytes(without_step(plain.read_bytes(), begun))
        with plain.open("rb") as source, gzip.open(packed, "wb", GZIP_LEVEL) as target:
            shutil.copyfileobj(source, target)
        packed.replace(path)
    finally:
        for beside in (plain, packed):
            beside.unlink(missing_ok=True)


def without_step(trace: bytes, number: int) -> bytes:
    """Return a trace without the spans of a step, one on each time line.

    Each event is an object, which may have another one with its arguments.
    """
    name = f"{STEP_NAME}#{number}".encode()
    span = rb'^  \{\n[^{}]*"name": "' + name + rb'",[^{}]*(?:\{[^{}]*\}[^{}]*)?\},\n'
    return re.sub(span, b"", trace, flags=re.MULTILINE)


def activities(device: str) -> list[ProfilerActivity]:
    """Return what is recorded on a rank that computes on ``device``."""
    known = profiler.supported_activities()
    own = [each for each in known if each.name.lower() == device.partition(":")[0]]
    others = [each for each in known if each is not ProfilerActivity.CPU]
    on_device = (own or others) if is_accelerator(device) else []
    return [ProfilerActivity.CPU, *on_device]
