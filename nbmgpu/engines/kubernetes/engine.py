"""The engine that runs as TrainJobs on a Kubernetes cluster."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from nbmgpu.engines.base import RunHandle
from nbmgpu.engines.multi_node import STOP
from nbmgpu.engines.multi_node.engine import MultiNodeEngine
from nbmgpu.engines.multi_node.placement import place_on_nodes
from nbmgpu.engines.supervision import stop_request
from nbmgpu.errors import LaunchError, OptionError, format_message
from nbmgpu.options.engine_options import recorded_engine_values
from nbmgpu.runs.events import Ended, Notice
from nbmgpu.runs.view import NODE_LOST

from .api import is_installed, require_installed
from .job import Job, submit_job
from .job_options import JobOptions
from .job_state import JobState
from .own_pod import complete

if TYPE_CHECKING:
    from nbmgpu.devices.placement import Placement
    from nbmgpu.options.run_options import RunOptions
    from nbmgpu.runs.run import Run

ANY_GPUS = 1 << 16
"""More GPUs than a node has: how many pods may have is not known before they are asked for."""

REASON_TIMEOUT = 5.0
"""Seconds in which the cluster tells why a pod was lost, after the head has noticed it."""

HOW_MANY = "--engine kubernetes does not know how many GPUs each pod is to have"


class KubernetesEngine(MultiNodeEngine):
    """Creates a TrainJob per run, and deletes it when the run has ended."""

    NOT_STARTED = "Its TrainJob was deleted before its ranks had started."

    def __init__(self) -> None:
        """Know no job yet."""
        self._jobs: dict[str, Job] = {}
        self._explained: set[str] = set()

    def missing(self) -> str:
        """Return the client's package where it is not installed."""
        return "" if is_installed() else "kubernetes"

    def check_options(self, values: Mapping[str, str]) -> None:
        """Check options of a profile."""
        JobOptions.of(values)

    def place(self, options: RunOptions) -> Placement:
        """Place the same number of ranks in each pod; the cluster chooses nodes and GPUs."""
        require_installed()
        wanted = JobOptions.of(options.engine_values())

        def gpus_per_node() -> int:
            if isinstance(options.gpus, int) or options.mesh:
                return ANY_GPUS
            instead = dataclasses.replace(options, gpus=8).command
            raise OptionError(format_message(HOW_MANY, "For CPU ranks: --cpu", instead))

        placement = place_on_nodes(options, gpus_per_node, wanted.cpus_per_rank)
        _, told = complete(wanted)
        return dataclasses.replace(placement, notice=f"{placement.notice} {told}".strip())

    def launch(self, run: Run) -> RunHandle:
        """Create the TrainJob."""
        options = JobOptions.of(recorded_engine_values(run.record.options.values))
        job = self._jobs[run.id] = submit_job(run, complete(options)[0])
        return job

    def is_alive(self, run: Run) -> bool:
        """Return whether pods of the run may still be there, or it has no job yet."""
        state = self._job(run).state()
        if state.head_lost and run.view.launcher is not None and run.view.ended is None:
            self.emit(run, Notice, topic=NODE_LOST, text=state.lost)
            self.emit(run, Ended, ending="failed", detail=_sentence(state.lost))
        return state.alive

    def sync(self, run: Run) -> None:
        """Say why a pod was lost, and delete the job, once the run has ended."""
        if run.view.ended is None:
            return
        job = self._job(run)
        with suppress(LaunchError):  # the cluster does not answer; a later run deletes the job
            if run.id not in self._explained and _has_lost_node(run):
                self._explained.add(run.id)
                state = self._lost(job)
                if state.lost:
                    self.emit(run, Notice, topic=NODE_LOST, text=state.lost)
                    run.refresh()
            job.delete()

    def _lost(self, job: Job) -> JobState:
        """Return the state of a job when it tells which pod was lost, or does not in a while."""
        deadline = time.monotonic() + REASON_TIMEOUT
        state = job.state()
        while not state.lost and time.monotonic() < deadline:
            time.sleep(0.5)
            state = job.state(now=True)
        return state

    def cancel(self, run: Run, sig: signal.Signals | None = None) -> None:
        """Delete the job, unless the head reads what it is to do in the run folder.

        A job that is deleted has time to end well: see ``train_job.GRACE``.
        """
        if sig != STOP or stop_request(run.folder) is None:
            self._job(run).delete()

    def _job(self, run: Run) -> Job:
        if run.id not in self._jobs:
            self._jobs[run.id] = Job(run)
        return self._jobs[run.id]


def _has_lost_node(run: Run) -> bool:
    """Return whether ranks of a run that has failed were killed, perhaps with their pod."""
    view = run.view
    silent = view.exited_silently
    was_killed = silent is not None and view.ranks[silent].exit_code == -signal.SIGKILL
    return view.ending == "failed" and (was_killed or NODE_LOST in view.notices)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
