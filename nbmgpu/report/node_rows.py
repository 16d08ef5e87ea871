"""A row per machine of a run on several ones, and the rows of the ranks on some of them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nbmgpu.formatting import format_count
from nbmgpu.runs.rank_view import RankView
from nbmgpu.runs.run import Run

from .rank_rows import UNKNOWN, Meter, RankRow, rows, usage
from .text_format import Tone, plain, span

WORST_FIRST: tuple[Tone, ...] = ("bad", "idle", "busy", "calm", "good")
"""A node has the first of these tones that one of its ranks has."""

LINES = 16
"""Maximum number of lines of a text; nodes that are alike share one."""


@dataclass(frozen=True)
class NodeRow:
    """The row of a machine.

    Attributes:
        node: its number, from 0.
        name: its host name, empty until one of its ranks has started.
        first, ranks: its first rank, and the number of its ranks.
        label: the states of its ranks: ``running``, or ``7 running, 1 failed (exit 1)``.
        tone: the worst of its ranks.
        step: the smallest of its ranks.
        step_time: the median of its ranks, formatted.
        slowest: whether the straggler is one of its ranks.
        memory, gpu_memory: the largest of its ranks; ``gpu_memory`` is None where there is no GPU.
        warning: that of one of its ranks, and how many others have one; or empty.
    """

    node: int
    name: str
    first: int
    ranks: int
    label: str
    tone: Tone
    step: int
    step_time: str
    slowest: bool
    memory: Meter
    gpu_memory: Meter | None
    warning: str


@dataclass(frozen=True)
class RankRequest:
    """A request for the rows of the ranks on ``nodes``, by number."""

    nodes: list[int]


def node_rows(run: Run, now: float, stopping: bool = False) -> list[NodeRow]:
    """Return a row per machine; none for a run on a single one."""
    record = run.record
    if record.nodes <= 1:
        return []
    all_rows, size = rows(run, now, stopping), record.ranks_per_node
    starts = range(0, record.nodes * size, size)
    return [
        _row(node, first, all_rows[first : first + size], run.view.ranks[first : first + size])
        for node, first in enumerate(starts)
    ]


def rows_on_nodes(
    run: Run, request: RankRequest, now: float, stopping: bool = False
) -> list[RankRow]:
    """Return the rows of the requested ranks; nodes that the run does not have are left out."""
    wanted, size = set(request.nodes), run.record.ranks_per_node
    return [row for row in rows(run, now, stopping) if row.rank // size in wanted]


def _row(node: int, first: int, of_ranks: Sequence[RankRow], seen: Sequence[RankView]) -> NodeRow:
    times = [rank.step_times[-1].step_time for rank in seen if rank.step_times]
    warned = [row for row in of_ranks if row.warning]
    warning = f"rank {warned[0].rank}: {warned[0].warning}" if warned else ""
    if len(warned) > 1:
        warning += f"; {format_count(len(warned) - 1, 'more rank')} with a warning"
    return NodeRow(
        node=node,
        name=plain(next((rank.host for rank in seen if rank.host), "")),
        first=first,
        ranks=len(of_ranks),
        label=_states(of_ranks),
        tone=min((row.tone for row in of_ranks), key=WORST_FIRST.index),
        step=min(row.step for row in of_ranks),
        step_time=span(statistics.median(times)) if times else "",
        slowest=any(row.slowest for row in of_ranks),
        memory=_most_memory(seen),
        gpu_memory=_most_gpu_memory(seen),
        warning=warning,
    )


def _states(of_ranks: Sequence[RankRow]) -> str:
    counts = Counter(row.label for row in of_ranks).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return ", ".join(f"{count} {label}" for label, count in counts)


def _most_memory(seen: Sequence[RankView]) -> Meter:
    beats = [rank.heartbeat for rank in seen if rank.heartbeat is not None]
    most = max(beats, key=lambda beat: beat.memory, default=None)
    return usage(most.memory, most.memory_total) if most else UNKNOWN


def _most_gpu_memory(seen: Sequence[RankView]) -> Meter | None:
    beats = [rank.heartbeat for rank in seen if rank.heartbeat is not None]
    most = max(beats, key=lambda beat: beat.gpu_memory, default=None)
    if most is None or most.gpu_memory < 0:
        return None
    return usage(most.gpu_memory, most.gpu_memory_total)


def node_lines(of_nodes: Sequence[NodeRow]) -> list[str]:
    """Return a line per node; above ``LINES``, a line for all nodes that are alike.

    Rare ones come first then, as what is wrong is rare.
    """
    if len(of_nodes) <= LINES:
        return [f"{_name(row)}: {_about(row)}" for row in of_nodes]
    alike: dict[tuple[str, str], list[NodeRow]] = {}
    for row in of_nodes:
        alike.setdefault((row.label, row.warning), []).append(row)
    groups = sorted(alike.values(), key=len)
    shown = groups if len(groups) <= LINES else [*groups[: LINES - 2], groups[-1]]
    lines = [f"{_names(group)}: {_about(_slowest(group))}" for group in shown]
    left_out = len(of_nodes) - sum(map(len, shown))
    return [*lines, f"{left_out} nodes more"] if left_out else lines


def _name(row: NodeRow) -> str:
    last = row.first + row.ranks - 1
    ranks = f"rank {row.first}" if row.ranks == 1 else f"ranks {row.first} to {last}"
    return f"{row.name or f'node {row.node}'}, {ranks}"


def _names(group: Sequence[NodeRow]) -> str:
    if len(group) == 1:
        return _name(group[0])
    first, last = (row.name or str(row.node) for row in (group[0], group[-1]))
    return f"{len(group)} nodes ({first} … {last}), {format_count(group[0].ranks, 'rank')} each"


def _slowest(group: Sequence[NodeRow]) -> NodeRow:
    return min(group, key=lambda row: row.step)


def _about(row: NodeRow) -> str:
    parts = [
        row.label,
        f"step {row.step:,}" if row.step else "",
        f"{row.step_time} per step" if row.step_time else "",
        f"{row.memory.text} of memory" if row.memory.text else "",
        row.warning,
    ]
    return ", ".join(filter(None, parts))
