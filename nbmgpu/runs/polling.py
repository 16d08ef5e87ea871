"""How often a run is polled: less often the longer it runs.

A poll takes a millisecond or more of a core, which may be a rank's, and all ranks wait for it. A
new run may be over in a moment; one that has lasted a minute is not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from .run import Run


@dataclass(frozen=True)
class PollingInterval:
    """Seconds between two polls: a fraction of the run's age, within limits."""

    shortest: float
    longest: float
    fraction: float

    def pause(self, run: Run) -> float:
        """Return the seconds until the next poll of ``run``."""
        age = time.time() - run.record.created
        return min(self.longest, max(self.shortest, self.fraction * age))


EVENTS = PollingInterval(shortest=0.01, longest=0.25, fraction=1 / 40)
"""For events and output of the ranks."""

PANEL = PollingInterval(shortest=0.2, longest=1.0, fraction=1 / 20)
"""For updates of the panel, which take several milliseconds each."""
