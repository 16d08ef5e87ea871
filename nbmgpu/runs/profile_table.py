"""What the ranks spent the time of their profiled steps on: a table with a row per rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .folder import trace_path

if TYPE_CHECKING:
    from pathlib import Path

    from .view import RunView


@dataclass(frozen=True)
class ProfileRow:
    """The average profiled step of a rank; see ``nbmgpu.runs.profile_event.StepProfile``.

    Attributes:
        rank: number of the rank.
        steps: the profiled optimizer steps, such as ``5-10``.
        step_time: seconds: the sum of compute, communication, data and host.
        compute, communication, data, host: seconds.
        hidden: seconds of communication beside computing, which are part of ``compute``.
        trace: path of the trace.
        nbytes: its size.
    """

    rank: int
    steps: str
    step_time: float
    compute: float
    communication: float
    hidden: float
    data: float
    host: float
    trace: str
    nbytes: int


@dataclass(frozen=True)
class ProfileTable:
    """What the ranks spent the time of their profiled steps on.

    Attributes:
        rows: of the ranks that have been profiled so far, in their order.
    """

    rows: list[ProfileRow]

    def __repr__(self) -> str:
        """Return the table as text."""
        from .profile_rendering import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from .profile_rendering import as_html

        return as_html(self)


def profile_table(folder: Path, view: RunView) -> ProfileTable:
    """Return what the ranks of the run in ``folder`` have reported."""
    rows = []
    for rank, profile in sorted(view.reports.profiles.items()):
        times = {name: getattr(profile, name) for name in TIMES}
        steps, trace = f"{profile.first}-{profile.last}", str(trace_path(folder, rank))
        rows.append(ProfileRow(rank, steps, trace=trace, nbytes=profile.nbytes, **times))
    return ProfileTable(rows)


TIMES = ("step_time", "compute", "communication", "hidden", "data", "host")
"""The columns with times."""
