"""What libraries save for the cell under a name: ``torch.save``, safetensors, tokenizers.

A path that all ranks name is written once, by rank 0, and the others go on when it is there:
a cell that asks ``os.path.exists`` next, or reads the path back, is answered alike on all.  So is
one that renames or deletes what it has saved: rank 0 does, when the others are through with it.

A path that rank 0 does not name (in a temporary folder, or with the time or the rank in it) is
written by the rank that does, and so is what a loader fetches: ranks fetch different samples.

Ranks tell one another by path, and by the number of the step, what they are at.  None waits for
ever: cells save under conditions (``if rank == 0:``, ``if accuracy > best:``) that ranks meet or
not.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import PurePath
from typing import Any

import torch.distributed as dist

from . import session
from .apart import passes_begun
from .shared import GONE, comes_from_rank_0

PATIENCE = 10.0
"""Seconds for which a rank waits until another one comes to the same place."""

GRACE = 0.3
"""The same where rank 0 has saved as often: it may have named another path instead."""

ALONE = 2.0
"""The same where others have not come to the save of what rank 0 deletes or renames."""

GLANCE = 0.5
"""Seconds between looks how many steps rank 0 has begun."""

APART = "apart"
"""The end of a key: a rank's save of that number has another path than rank 0's."""

NAMES = ("f", "filename", "path")
"""What functions that save call the path."""

FETCHING = "torch.utils.data._utils.fetch"


class Saves:
    """The saves of one rank."""

    def __init__(self, rank: int, is_own: Callable[[str], bool]) -> None:
        """Be on ``rank``; ``is_own`` tells a path that no other rank can have."""
        self._rank = rank
        self._is_own = is_own
        self._process = os.getpid()
        self._replace, self._unlink = os.replace, os.unlink  # as they are before the taps
        self._lock = threading.Lock()
        self._times: Counter[str] = Counter()
        self._missed: list[str] = []
        self._saved: dict[str, str] = {}
        self._folders: set[str] = set()
        self.mine: set[str] = set()
        """Paths that this rank has written for itself."""
        self.aside: set[str] = set()
        """Paths that it is writing, to be renamed when they are whole."""

    def of(self, save: Callable[..., Any], place: int, pickles: bool = False) -> Callable[..., Any]:
        """Return ``save``, whose argument at ``place`` is a path, as it is called in a rank.

        What it ``pickles`` may have to be gathered by all.
        """

        @functools.wraps(save)
        def saving(*args: Any, **kwargs: Any) -> Any:
            given: Any = args[place] if len(args) > place else None
            given = given or next((kwargs[n] for n in NAMES if n in kwargs), None)
            if not isinstance(given, str | os.PathLike) or not self._is_among_ranks():
                return save(*args, **kwargs)
            path = os.path.realpath(given)
            if self._is_own(path):
                return save(*args, **kwargs)
            plain = functools.partial(save, *args, **kwargs)
            whole = functools.partial(self._write_whole, path, save, place, args, kwargs)
            if os.getpid() != self._process or _is_fetching():
                self.mine.add(path)
                return whole()
            at, number = self._at_next(f"save {path}"), self._at_next("number")
            with self._lock:
                self._add(path, number)
            if self._rank == 0:
                _store().set(f"nbmgpu/named {path}", b"")
                _store().set(number, b"")
                return _told(at, plain if os.path.lexists(path) else whole)
            met = self._meets(at, number)
            _store().set(f"{number}/{self._rank if met else APART}", b"")
            if not met and not _store().check([f"nbmgpu/named {path}"]):
                self.mine.add(path)
                return whole() if os.path.isfile(path) or not os.path.lexists(path) else plain()
            if pickles and session.current is not None and (met or not _is_ahead()):
                session.current.strategy.attend(args[0] if args else kwargs.get("obj"))
            if met:  # else what rank 0 has written there, when it came by, counts
                comes_from_rank_0(f"{at}/done")
            return None

        return saving

    def has(self, path: Any) -> bool:
        """Tell whether something was saved at ``path``, or in the folder of that name."""
        if not self._saved or not isinstance(path, str | os.PathLike):
            return False
        if os.getpid() != self._process or not self._is_among_ranks():
            return False
        place = os.path.realpath(path)
        return place in self._saved or place in self._folders

    def move(self, rename: Callable[[Any, Any], None], src: Any, dst: Any) -> None:
        """Rename what was saved; ranks may have had different names for it before."""
        old, new = os.path.realpath(src), os.path.realpath(dst)
        found, mine = self._take(old)
        renamed = {path: new + path[len(old) :] for path in found}
        at, number = self._at_next(f"move {new}"), self._at_next("number")
        with self._lock:
            for path, save in found.items():
                self._add(renamed[path], save)
        if self._rank == 0:
            _store().set(number, b"")
            self._wait_for_others(at, found.values())
            _told(at, functools.partial(rename, src, dst))
            return
        met, alone = self._meets(at, number), bool(mine) and mine == found.keys()
        if met:
            comes_from_rank_0(f"{at}/done")
        if alone and met:
            self._unlink(old)
        elif alone:
            rename(src, dst)
            self.mine |= set(renamed.values())

    def delete(self, delete: Callable[[], None], path: str) -> None:
        """Delete what was saved."""
        found, mine = self._take(path)
        if mine and mine == found.keys():
            with suppress(FileNotFoundError):  # rank 0 may have come by later, and named it, too
                delete()
            return
        at = self._at_next(f"delete {path}")
        if self._rank == 0:
            self._wait_for_others(at, found.values())
            _told(at, delete)
        elif self._meets(at):
            comes_from_rank_0(f"{at}/done")

    def _meets(self, at: str, number: str = "") -> bool:
        """Tell whether rank 0 comes to ``at``, too, which for this rank is the save ``number``."""
        store = _store()
        store.set(f"{at}/{self._rank}", b"")
        begun = glanced = time.monotonic()
        limit = begun + PATIENCE
        while not store.check([f"{at}/begun"]):
            now = time.monotonic()
            if number and store.check([number]):
                limit, number = min(limit, now + GRACE), ""
            if now - glanced > GLANCE:
                glanced = now
                if _is_ahead():
                    limit = now
            if now >= limit or store.check([GONE]):
                return bool(store.check([f"{at}/begun"]))
            time.sleep(min(0.01, 0.001 + (now - begun) / 10))
        return True

    def _wait_for_others(self, at: str, saves: Iterable[str]) -> None:
        """Wait until all ranks have come to ``at``: they may be reading what was saved.

        Once in vain is enough, unless they come to that later: rank 0 does such things alone.
        """
        store, others, numbers = _store(), range(1, dist.get_world_size()), list(saves)[:8]
        if any(store.check([f"{number}/{APART}"]) for number in numbers):
            return  # they have a name of their own for it
        if self._missed and not store.check(self._missed):
            return
        self._missed = []
        shared = [f"{number}/{rank}" for number in numbers for rank in others]
        keys = [f"{at}/{rank}" for rank in others]
        begun = time.monotonic()
        while not store.check(keys):
            waited = time.monotonic() - begun
            if waited > PATIENCE or (waited > ALONE and not store.check(shared)):
                self._missed = keys
                return
            time.sleep(0.002)

    def _write_whole(
        self,
        path: str,
        save: Callable[..., Any],
        place: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Save under another name, and rename: another rank may be writing or reading the path."""
        aside = f"{path}.{os.getpid()}-{threading.get_ident()}"
        if len(args) > place:
            args = (*args[:place], aside, *args[place + 1 :])
        else:
            kwargs = kwargs | {name: aside for name in NAMES if name in kwargs}
        self.aside.add(aside)
        try:
            result = save(*args, **kwargs)
            self._replace(aside, path)
        except BaseException:
            with suppress(FileNotFoundError):
                self._unlink(aside)
            raise
        finally:
            self.aside.discard(aside)
        return result

    def _is_among_ranks(self) -> bool:
        return dist.is_initialized() and dist.get_world_size() > 1

    def _add(self, path: str, number: str) -> None:
        if path not in self._saved:
            self._folders.update(map(str, PurePath(path).parents))
        self._saved[path] = number

    def _take(self, place: str) -> tuple[dict[str, str], set[str]]:
        """Forget what was saved at or in ``place``; return its keys, and what is this rank's."""
        with self._lock:
            prefix = f"{place}/"
            paths = [path for path in self._saved if path == place or path.startswith(prefix)]
            found = {path: self._saved.pop(path) for path in paths}
            mine = self.mine & found.keys()
            self.mine -= mine
            self._folders.discard(place)
        return found, mine

    def _at_next(self, what: str) -> str:
        """Return the key for the next time that this rank does ``what`` in this step.

        By step: where one rank has done it once more, all agree again from the next step on.
        """
        step = 0 if session.current is None else session.current.begun
        with self._lock:
            self._times[f"{what} {step}"] += 1
            return f"nbmgpu/{what}/{step}/{self._times[f'{what} {step}']}"


def _told(at: str, do: Callable[[], Any]) -> Any:
    """Do what others wait for."""
    store = _store()
    store.set(f"{at}/begun", b"")
    try:
        return do()
    finally:  # also where it failed: the cell may go on
        store.set(f"{at}/done", b"")


def _is_ahead() -> bool:
    """Tell whether rank 0 has begun more steps than this rank: it came by here without a save."""
    current = session.current
    if current is None:
        return False
    theirs = passes_begun(current.recorder.events.path.with_name("rank-0.jsonl"))
    return theirs > current.begun


def _is_fetching() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == FETCHING:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
