"""How often a run is polled: less often the longer it runs.

A poll takes a millisecond or more of a core, which may be a rank's, and all ranks wait for it. A
new run may be over in a moment; one that has lasted a minute is not.  With many ranks, or on a slow
file system, a poll takes longer, and there are fewer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from .run import Run

MAX_SHARE = 0.2
"""The largest part of the time that reading events takes, unless a read takes seconds."""

LONGEST_PAUSE = 5.0
"""Maximum seconds between two polls, however long a read takes."""


@dataclass(frozen=True)
class PollingInterval:
    """Seconds between two polls: a fraction of the run's age, within limits."""

    shortest: float
    longest: float
    fraction: float

    def pause(self, run: Run) -> float:
        """Return the seconds until the next poll of ``run``."""
        age = time.time() - run.record.created
        pause = min(self.longest, max(self.shortest, self.fraction * age))
        return max(pause, min(run.read_time * (1 / MAX_SHARE - 1), LONGEST_PAUSE))


EVENTS = PollingInterval(shortest=0.01, longest=0.25, fraction=1 / 40)
"""For events and output of the ranks."""

PANEL = PollingInterval(shortest=0.2, longest=1.0, fraction=1 / 20)
"""For updates of the panel, which take several milliseconds each."""
