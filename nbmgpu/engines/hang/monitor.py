"""Notices that ranks make no progress, asks them where they are, and reports it."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from nbmgpu.engines.rank_processes import RankProcesses
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import Hang
from nbmgpu.runs.preallocation import disk_is_full
from nbmgpu.runs.run import Run
from nbmgpu.runs.stacks import (
    STACK_SIGNAL,
    collective_path,
    read_collective,
    read_line,
    read_stack,
    request_path,
    stack_path,
)

from .diagnosis import CellSource, RankEvidence, diagnose, format_stack, place, process_states
from .progress import RankProgress

HANG_AFTER = 60.0
"""Seconds without progress that count as a hang."""

STEPS = 20
"""Median steps without progress that a hang has at least."""

PATIENCE = 5
"""Factor on ``HANG_AFTER`` before the first step, and while a rank computes: it may compile,
download, evaluate without output, or do work that only one rank has to do."""

INTERVAL = 0.5
"""Seconds between two reads of the ranks' events."""

ANSWER = 2.0
"""Seconds that ranks have for their reports: heartbeats are a second apart."""


class HangMonitor:
    """Watches the ranks of one run; it is polled by the supervisor."""

    def __init__(self, run: Run, ranks: RankProcesses, events: EventWriter) -> None:
        """Watch ``ranks`` of ``run``; ``events`` gets the reports."""
        self._run = run
        self._processes = ranks
        self._events = events
        self._cell = run.cell.splitlines()  # now: the folder may be removed while the run goes on
        values = run.record.options.values
        self._stops = values.get("on_hang") in ("stop", "restart")
        self._hang_after: float | None = values.get("hang_after")
        now = time.monotonic()
        self._ranks = [
            RankProgress(run.events_path(f"rank-{rank}"), now)
            for rank in range(run.record.world_size)
        ]
        self._next = now + INTERVAL
        self._asked: tuple[float, list[int]] | None = None
        self._reported: Hang | None = None

    def poll(self) -> Hang | None:
        """Read new events if it is time for that; return the hang that lasts, if there is one."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + INTERVAL
            for rank in self._ranks:
                rank.update(now)
            self._advance(now)
        return self._reported

    def _advance(self, now: float) -> None:
        reported = self._reported
        if reported is not None and self._quiet(now) < reported.seconds:  # there was progress
            self._emit(over=True)
            self._reported = self._asked = None
        elif not self._hangs(now) or disk_is_full(self._run.folder):  # nothing tells of progress
            self._asked = None
        elif self._asked is not None:
            asked, offsets = self._asked
            if now - asked > ANSWER:
                self._asked = None
                self._report(now, offsets)
        elif reported is None or self._is_to_stop(reported, now):
            self._ask(now)

    def _is_to_stop(self, reported: Hang, now: float) -> bool:
        """Return whether a hang is to end the run that has not, as a rank was computing."""
        return self._stops and not reported.stops and not self._computes(now)

    def _running(self) -> list[RankProgress]:
        """Return the ranks that run the cell; none while ranks start, fail or end."""
        states = {rank.state for rank in self._ranks}
        can_hang = states <= {"running", "collecting", "finished"}
        return [rank for rank in self._ranks if rank.state == "running" and can_hang]

    def _quiet(self, now: float) -> float:
        """Return the seconds since the last progress of the rank that waits longest."""
        return now - min((rank.progress_time for rank in self._running()), default=now)

    def _all_wait(self, now: float, limit: float) -> bool:
        return all(now - rank.progress_time > limit for rank in self._running())

    def _hangs(self, now: float) -> bool:
        """Return whether all ranks wait for too long, or one of them much longer than that."""
        limit = self._limit(now)
        if self._quiet(now) <= limit:
            return False
        return self._all_wait(now, limit) or self._quiet(now) > PATIENCE * limit

    def _computes(self, now: float) -> bool:
        return any(rank.is_computing(now) for rank in self._ranks)

    def _limit(self, now: float) -> float:
        median = max(rank.median_step for rank in self._ranks)
        patient = self._computes(now) or (self._hang_after is None and not median)
        limit = max(self._hang_after or HANG_AFTER, STEPS * median)
        return limit * PATIENCE if patient else limit

    def _ask(self, now: float) -> None:
        """Let ranks report their stacks and collectives."""
        folder = self._run.folder
        offsets = []
        for rank in range(len(self._ranks)):
            collective_path(folder, rank).unlink(missing_ok=True)
            try:
                offsets.append(stack_path(folder, rank).stat().st_size)
            except OSError:
                offsets.append(0)
        with suppress(OSError):
            request_path(folder).write_text(f"{now}")
        self._processes.signal(signal.Signals(STACK_SIGNAL))
        self._asked = now, offsets

    def _report(self, now: float, offsets: Sequence[int]) -> None:
        source = CellSource(self._cell)
        evidence = [self._evidence(rank, offset, now) for rank, offset in enumerate(offsets)]
        found = diagnose(evidence, source)
        self._reported = self._emit(
            seconds=round(self._quiet(now), 1),
            cause=found.cause,
            remedy=found.remedy,
            places=[place(rank, source) for rank in evidence],
            stacks=[format_stack(rank.stack, source) for rank in evidence],
            stops=self._stops and not self._computes(now) and self._all_wait(now, ANSWER),
        )

    def _evidence(self, rank: int, offset: int, now: float) -> RankEvidence:
        seen = self._ranks[rank]
        suspended, pid, broken = process_states(seen.process)
        return RankEvidence(
            rank=rank,
            line=read_line(self._run.folder, rank),
            silent=seen.is_silent(now) and not suspended,
            computing=seen.is_computing(now),
            over=seen.state in ("collecting", "finished"),
            stack=[] if suspended else read_stack(self._run.folder, rank, offset),
            collective=read_collective(self._run.folder, rank),
            suspended=suspended,
            pid=pid,
            broken_workers=broken,
        )

    def _emit(self, **fields: object) -> Hang | None:
        with suppress(OSError):  # the disk is full: the run goes on without the report
            return self._events.emit(Hang, **fields)
        return None
