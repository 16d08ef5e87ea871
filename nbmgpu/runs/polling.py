"""How closely a run is watched: less and less, the longer it goes on.

A look takes a millisecond or more of a core, and that core may be a rank's, for which all ranks
wait.  A run that is young may be over in a moment; one that has lasted a minute is not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from .run import Run


@dataclass(frozen=True)
class Rhythm:
    """Seconds between two looks: so many, or a part of the run's age, within limits."""

    shortest: float
    longest: float
    part: float

    def pause(self, run: Run) -> float:
        """Return the seconds until the next look at ``run``."""
        age = time.time() - run.record.created
        return min(self.longest, max(self.shortest, self.part * age))


EVENTS = Rhythm(shortest=0.01, longest=0.25, part=1 / 40)
"""Of looks at what the ranks have said, and printed."""

PANEL = Rhythm(shortest=0.2, longest=1.0, part=1 / 20)
"""Of updates of the panel, each of which takes several milliseconds."""
