"""Folders that the cell makes: once, by rank 0.

Each rank comes by them at its own time, and what it then does may depend on whether they are there:
``while os.path.exists(f"run{n}"): n += 1``.  So a folder that rank 0 has made in this cell is not
there for another rank until that has come to make it, too.  What libraries make is there at once:
rank 0 may be in one of them alone.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from .together import Together, the_store

SLACK = 2.0
"""Seconds by which the times of a file system may be wrong."""


class Folders:
    """The folders of the cell, as one rank knows them."""

    def __init__(self, rank: int) -> None:
        """Be on ``rank``, at the beginning of the cell."""
        self._rank = rank
        self._process = os.getpid()
        self._began = time.time() - SLACK
        self._together = Together(rank)
        self.made: set[str] = set()
        """What this rank has made, or come to make."""

    def make(self, make: Callable[[], None], place: str) -> None:
        """Make a folder, or wait until rank 0 has; one that it does not make is this rank's own.

        Raises:
            OSError: it could not be made, on all ranks alike: there is one already.
        """
        if not self._is_here():  # a loader's worker, which meets nobody
            self.make_or_find(make, place)
            return
        at, number = self._together.next(f"mkdir {place}"), self._together.next("mkdir")
        if self._rank == 0:
            the_store().set(number, b"")
            if not os.path.lexists(place):
                the_store().set(_made(place), b"")
            self._together.tell(at, make)
        elif self._together.meets(at, number, _made(place)):
            try:
                self._together.finish(at)
            except FileNotFoundError:  # that above it was rank 0's to make, or is this rank's alone
                make()
        elif place in self.made or not the_store().check([_made(place)]):
            make()
        self.made.add(place)

    def make_or_find(self, make: Callable[[], None], place: str) -> None:
        """Make a folder, or let it be there if another rank has just made it."""
        try:
            make()
        except FileExistsError:
            new = os.path.isdir(place) and os.stat(place).st_ctime >= self._began
            if place in self.made or not new:
                raise
        self.made.add(place)

    def hides(self, path: Any, found: os.stat_result) -> bool:
        """Tell whether a folder, which is ``found`` at ``path``, is not there for this rank yet."""
        if not stat.S_ISDIR(found.st_mode) or found.st_ctime < self._began or not self._is_here():
            return False
        place = os.path.realpath(path)
        return place not in self.made and bool(the_store().check([_made(place)]))

    def _is_here(self) -> bool:
        alone = not dist.is_initialized() or dist.get_world_size() == 1
        return os.getpid() == self._process and not alone


def _made(place: str) -> str:
    """Return the key that says that rank 0 has made a folder in this cell."""
    return f"nbmgpu/made {place}"
