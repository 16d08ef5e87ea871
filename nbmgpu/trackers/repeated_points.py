"""Points that a resumed cell logs again: the run that it resumes has logged them already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import RankLogging


class RepeatedPoints:
    """Which points of one run, or one folder, are logged already.

    A cell that resumes begins with its first line, and goes on at its checkpoint.  So until then
    it repeats what was logged before the checkpoint, and afterwards what the run has logged that
    was broken off after it.  Each point that is logged already stands for one that comes again.
    """

    def __init__(
        self,
        load: Callable[[], tuple[Iterable[Hashable], Iterable[Hashable]]],
        rank: RankLogging,
    ) -> None:
        """Read what is logged by ``load``: points from before and from after the checkpoint."""
        self._load = load
        self._rank = rank
        self._points: tuple[Counter[Hashable], Counter[Hashable]] | None = None

    def read(self) -> None:
        """Read what is logged already; otherwise it is read at the first point."""
        before, after = self._load()
        self._points = Counter(before), Counter(after)

    def has(self, point: Hashable) -> bool:
        """Return whether ``point`` is logged already; it then counts as logged again."""
        if self._points is None:
            self.read()
        assert self._points is not None
        logged = self._points[0 if self._rank.is_resuming() else 1]
        if logged[point] > 0:
            logged[point] -= 1
            return True
        return False
