"""The state of a run, aggregated from its events, for panels, summaries and tests.

A ``RunView`` consumes events in time order. It knows neither files nor widgets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .clock import RunClock
from .curve import Curve
from .events import (
    LAUNCHER,
    CheckpointWritten,
    Ended,
    Event,
    Exited,
    Failure,
    Hang,
    Metrics,
    Notice,
    ParameterShards,
    Progress,
    Restart,
    RunState,
    Started,
    TensorBoardFolder,
    Verified,
)
from .number_topics import DIFFERS
from .profile_event import StepProfile
from .rank_view import RankView

STOPPING = "stopping"
"""Topic of the notice of what a run does before it stops."""

QUEUED = "queued"
"""Topic of the notice of what a run waits for before it starts; a later one replaces it."""

NODE_LOST = "node-lost"
"""Topic of the notice of why ranks were killed with their node, as the engine has found out."""


@dataclass
class ProgressTrack:
    """The history of a progress bar: its first state, the start of its current pass, its newest."""

    first: Progress
    begun: Progress
    now: Progress

    @classmethod
    def of(cls, event: Progress) -> ProgressTrack:
        """Start with a bar's first state."""
        return cls(event, event, event)

    def add(self, event: Progress) -> None:
        """Apply the bar's next state."""
        if event.epoch != self.now.epoch or event.step < self.now.step:
            self.begun = event
        self.now = event


@dataclass
class RankReports:
    """What ranks and the reference report a few times at most: the newest of each.

    Attributes:
        shards: the parameters that a rank stores.
        profiles: what it spent profiled steps on.
        verified: the steps of all ranks that were compared with one device.
    """

    shards: dict[int, ParameterShards] = field(default_factory=dict)
    profiles: dict[int, StepProfile] = field(default_factory=dict)
    verified: Verified | None = None


class RunView:
    """The state of a run.

    ``notices`` has each topic once. ``tracks`` maps a bar's key to its history on rank 0, which
    represents all ranks.  ``hang`` is the hang that lasts, or that has ended the run.
    ``checkpoint`` is the newest.  ``tensorboard`` has the folders that TensorBoard reads, in the
    order of their use.
    """

    def __init__(self, world_size: int) -> None:
        """Start with ``world_size`` ranks and no events."""
        self.ranks = [RankView() for _ in range(world_size)]
        self.launcher: Started | None = None
        self.clock = RunClock()
        self.curves: dict[str, Curve] = {}
        self.tracks: dict[str, ProgressTrack] = {}
        self.notices: dict[str, Notice] = {}
        self.reports = RankReports()
        self.tensorboard: list[str] = []
        self.restart: Restart | None = None
        self.checkpoint: CheckpointWritten | None = None
        self.hang: Hang | None = None
        self.ended: Ended | None = None
        self.first_time: float | None = None
        self.last_time: float = 0.0

    def add(self, event: Event) -> None:
        """Apply an event; ignore that of a rank which the run does not have."""
        about = event.of_rank if isinstance(event, Exited) else 0
        if not (LAUNCHER <= event.rank < len(self.ranks) and 0 <= about < len(self.ranks)):
            return
        self.first_time = event.time if self.first_time is None else self.first_time
        self.last_time = max(self.last_time, event.time)
        match event:
            case Started() if event.rank == LAUNCHER:
                self.launcher = event
            case Exited():
                self.ranks[event.of_rank].exited = event
            case Metrics():
                self.curves.setdefault(event.name, Curve()).add(event)
            case Progress() if event.rank == 0:
                if track := self.tracks.get(event.key):
                    track.add(event)
                else:
                    self.tracks[event.key] = ProgressTrack.of(event)
            case Notice() if event.topic in (QUEUED, NODE_LOST):
                self.notices[event.topic] = event
            case Notice():
                self.notices.setdefault(event.topic, event)
            case CheckpointWritten():
                self.checkpoint = event
            case TensorBoardFolder() if event.folder not in self.tensorboard:
                self.tensorboard.append(event.folder)
            case Restart():
                self.restart = self.restart or event
            case Verified():
                self.reports.verified = event
            case ParameterShards():
                self.reports.shards[event.rank] = event
            case StepProfile():
                self.reports.profiles[event.rank] = event
            case Hang():
                self.hang = None if event.over else event
            case Ended():
                self.ended = event
        if event.rank >= 0:
            self.ranks[event.rank].add(event)
        if event.rank == 0:
            self.clock.add(event)

    @property
    def notice_texts(self) -> list[str]:
        """The texts of the notices that still hold, in order."""
        over = {STOPPING} if self.ended else set()
        over |= {QUEUED} if self.launcher else set()
        return [notice.text for notice in self.notices.values() if notice.topic not in over]

    @property
    def progress(self) -> dict[str, Progress]:
        """Each bar's newest state, by its key."""
        return {key: track.now for key, track in self.tracks.items()}

    @property
    def trained_on_different_batches(self) -> bool:
        """Whether ranks trained on different batches of their loaders."""
        return len({rank.step_digest.batches for rank in self.ranks if rank.step_digest}) > 1

    @property
    def losses_reduce_differently(self) -> bool:
        """Whether losses of ranks reduced differently in some step."""
        digests = {rank.step_digest.losses for rank in self.ranks if rank.step_digest}
        return len(digests - {""}) > 1

    @property
    def weights_differ(self) -> bool:
        """Whether the ranks' replicated weights differ at the end."""
        digests = {rank.step_digest.weights for rank in self.ranks if rank.step_digest}
        return len(digests - {""}) > 1

    @property
    def differing_buffers(self) -> list[str]:
        """Names of buffers with different values on ranks at the end."""
        return _differing([rank.step_digest.buffers for rank in self.ranks if rank.step_digest])

    @property
    def numbers_differ(self) -> bool:
        """Whether ranks computed with different Python numbers in some step."""
        digests = [rank.step_digest.numbers for rank in self.ranks if rank.step_digest]
        return bool(_differing(digests))

    @property
    def restart_reason(self) -> str:
        """Why the cell starts again with whole batches, as a predicate; empty if it does not."""
        if self.restart is not None:
            return self.restart.reason
        digests = [rank.step_digest for rank in self.ranks if rank.step_digest]
        if self.ending != "finished" or not digests or not all(d.may_restart for d in digests):
            return ""
        found = {
            "different-batches": self.trained_on_different_batches,
            "different-reductions": self.losses_reduce_differently,
            "different-numbers": self.numbers_differ,
            "different-weights": self.weights_differ,
            "different-buffers": bool(self.differing_buffers),
        }
        return next((DIFFERS[topic] for topic, differs in found.items() if differs), "")

    @property
    def ending(self) -> str | None:
        """How the run ended, or None while it is active."""
        return self.ended.ending if self.ended else None

    @property
    def state(self) -> RunState:
        """The state of the run."""
        if self.ended:
            return self.ended.ending
        begun = any(rank.state not in ("starting", "loading") for rank in self.ranks)
        return "running" if begun else "starting"

    @property
    def failure(self) -> Failure | None:
        """The earliest failure by time, which is the cause of later ones.

        If rank 0 raised the same exception, rank 0's is returned.
        """
        failures = [rank.failure for rank in self.ranks if rank.failure]
        cause = min(failures, key=lambda f: f.time, default=None)
        own = self.ranks[0].failure
        same = cause and own and (cause.type, cause.message) == (own.type, own.message)
        return own if same else cause

    @property
    def killed(self) -> list[int]:
        """Ranks ended by a signal that the launcher did not send."""
        return [
            number
            for number, rank in enumerate(self.ranks)
            if rank.exited and rank.exited.code < 0 and not rank.exited.terminating
        ]

    @property
    def exited_silently(self) -> int | None:
        """The rank of ``first_silent_exit``."""
        return None if (exited := self.first_silent_exit) is None else exited.of_rank

    @property
    def first_silent_exit(self) -> Exited | None:
        """The first exit of a rank without being asked and without an exception, if any.

        Later exceptions of other ranks, such as a lost connection, are consequences.
        """
        exits = [
            rank.exited
            for rank in self.ranks
            if rank.exited
            and not rank.exited.terminating
            and (rank.exited.code or rank.state != "finished")
        ]
        first = min(exits, key=lambda e: e.time, default=None)
        return None if first is None or self.ranks[first.of_rank].failure else first

    @property
    def failed_rank(self) -> int | None:
        """The rank that caused the failure: it exited without an exception, or raised first.

        None while nothing has failed, and for a run that was stopped.
        """
        if self.ending in (None, "failed") and self.exited_silently is not None:
            return self.exited_silently
        if self.failure:
            return self.failure.rank
        if self.ending not in (None, "failed"):
            return None
        exits = [rank.exited for rank in self.ranks if rank.exited and rank.exited.code]
        return min(exits, key=lambda e: e.time).of_rank if exits else None


def _differing(digests: list[dict[str, str]]) -> list[str]:
    """Return the names under which some of ``digests`` differ from the first."""
    first = digests[0] if digests else {}
    return [n for n in first if any(other.get(n, first[n]) != first[n] for other in digests)]
