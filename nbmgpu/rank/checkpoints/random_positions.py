"""The random states in the middle of loops, with which a resumed cell draws the same numbers.

A sampler draws when a pass over its loader begins, and a dataset when a batch is loaded.  A resumed
cell begins the same passes and loads the same batches, without the draws of the steps in between.
So the states before each pass that is in progress, and before its last batch, are in a checkpoint.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from nbmgpu.environment import random_state

from .loader_pass import LoaderPass, PassRecord
from .loops import LoopStack

if TYPE_CHECKING:
    from nbmgpu.rank.rng.streams import RandomStreams

    from .resume import Resume


@dataclass(frozen=True)
class RankRandomStates:
    """The random states of a rank in a checkpoint.

    Attributes:
        initial: before the cell.
        now: when the checkpoint was written.
        passes: those that have begun outside of loops, and in each running loop.
    """

    initial: Any
    now: Any
    passes: list[list[PassRecord]]


class RandomPosition:
    """Records random states, and restores those of a checkpoint.

    Attributes:
        initial: the states before the cell.
    """

    def __init__(
        self, streams: RandomStreams, loops: LoopStack, is_near: Callable[[], bool]
    ) -> None:
        """Record the states of ``streams`` at passes of ``loops``, and while one ``is_near``."""
        self._streams = streams
        self._is_near = is_near
        self._loops = loops
        self._open: MutableMapping[PassRecord, LoaderPass] = weakref.WeakValueDictionary()
        self.initial: Any = None
        self._rank = 0

    def begin(self, resume: Resume | None, rank: int) -> None:
        """Note the states before the cell; those of the first run for a resumed cell."""
        self._rank = rank
        self.initial = random_state.capture()
        if resume is not None:
            self.initial = self._saved(resume).initial
            random_state.restore(self.initial)

    def states(self) -> RankRandomStates:
        """Return the states now."""
        passes = [
            [replace(each) for each in level.passes]  # as they are now
            for level in self._loops.levels
        ]
        return RankRandomStates(self.initial, self._streams.states(), passes)

    @property
    def is_recorded(self) -> bool:
        """Whether a resumed cell begins every pass again that is in progress.

        It does not begin those again that an earlier iteration of a loop has begun for later ones.
        """
        return not any(
            each.in_body and each.iteration != loop.count and self._is_open(each)
            for loop in self._loops.active
            for each in loop.passes
        )

    @property
    def newest_pass(self) -> Any:
        """The random states before the newest pass over a loader that is in progress, or None."""
        passes = [each for level in self._loops.levels for each in level.passes]
        return next((each.begun for each in reversed(passes) if self._is_open(each)), None)

    def restore(self, resume: Resume) -> bool:
        """Restore the states of when the checkpoint was written.

        Passes that the cell reads by ``next`` are first brought to their batch.

        Returns:
            Whether batches were loaded for that.
        """
        saved, loaded = self._saved(resume), False
        for loop, passes in zip(self._loops.levels, saved.passes, strict=True):
            live, level = list(loop.passes), loop.passes
            level.clear()
            for before in passes:
                found = next((each for each in live if each.iteration == before.iteration), None)
                if found is None:
                    level.append(before)
                    continue
                live.remove(found)
                if found in self._open:
                    loaded |= found.batches < before.batches
                    self._open[found].advance(before)
                found.begun, found.loaded = before.begun, before.loaded
                level.append(found)
        self._streams.restore(saved.now)
        return loaded

    def follow(
        self, begin: Callable[[], Iterator[Any]], frame: FrameType, resume: Resume | None
    ) -> Iterator[Any]:
        """Begin a pass over a loader for ``frame``, and record states as it goes."""
        saved = None if resume is None else self._saved_pass(resume)
        if saved is not None:
            self._streams.restore(saved.begun)
        record = self._loops.begin_pass(self._streams.states(), frame)
        followed = LoaderPass(record, begin(), self._streams, self._is_near)
        if saved is not None and resume is not None:
            followed.resume_from(saved, lambda: resume.is_next(self._loops.active))
        self._open[record] = followed
        return followed

    def _is_open(self, record: PassRecord) -> bool:
        return record in self._open and not record.is_over

    def _saved(self, resume: Resume) -> RankRandomStates:
        states: RankRandomStates = resume.random[self._rank % len(resume.random)]
        return states

    def _saved_pass(self, resume: Resume) -> PassRecord | None:
        """Return the record of the pass that begins now; None if it was over at the checkpoint."""
        active, saved = self._loops.active, self._saved(resume).passes
        if len(active) >= len(saved) or not resume.is_on_way(active):
            return None
        here = self._loops.levels[-1]
        number = sum(each.iteration == here.count for each in here.passes)
        alike = [each for each in saved[len(active)] if each.iteration == here.count]
        return alike[number] if number < len(alike) else None
