"""What libraries save for the cell under a name: ``torch.save``, safetensors, tokenizers.

A path that all ranks name is written once, by rank 0, and the others go on when it is there:
a cell that asks ``os.path.exists`` next, or reads the path back, is answered alike on all.  So is
one that renames or deletes what it has saved: rank 0 does, when the others are through with it.

A path that rank 0 does not name (in a temporary folder, or with the time or the rank in it) is
written by the rank that does, and so is what a loader fetches: ranks fetch different samples.

Ranks tell one another by path, and of each path by number, what they are at.  None waits for ever:
cells save under conditions (``if rank == 0:``, ``if accuracy > best:``) that ranks meet or not.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
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

ALONE = 1.0
"""The same where rank 0 has saved something alone, before it deletes or renames it."""

GLANCE = 0.5
"""Seconds between looks how many steps rank 0 has begun."""

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
        self._replace = os.replace
        self._lock = threading.Lock()
        self._times: Counter[str] = Counter()
        self._number = 0
        self._patient = True
        self._saved: set[str] = set()
        self._folders: set[str] = set()
        self._mine: set[str] = set()

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
            whole = functools.partial(self._write_whole, path, save, place, args, kwargs)
            if os.getpid() != self._process or _is_fetching():
                return whole()
            with self._lock:
                self._number += 1
                number = self._number
                self._add(path)
            at = self._at_next(f"save {path}")
            if self._rank == 0:
                _store().set(f"nbmgpu/saves/{number}", b"")
                return _told(at, functools.partial(save, *args, **kwargs))
            if not self._meets(at, number):
                if _store().check([f"nbmgpu/save {path}/1/begun"]):
                    return None  # what rank 0 has written there, when it came by, counts
                self._mine.add(path)
                return whole()
            if pickles and session.current is not None:
                session.current.strategy.attend(args[0] if args else kwargs.get("obj"))
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
        """Rename what was saved."""
        old, new = os.path.realpath(src), os.path.realpath(dst)
        moved, mine = self._take(old)
        with self._lock:
            for path in moved:
                self._add(new + path[len(old) :])
            self._mine |= {new + path[len(old) :] for path in mine}
        self._do_once(f"move {old} {new}", moved, mine, functools.partial(rename, src, dst))

    def delete(self, delete: Callable[[], None], path: str) -> None:
        """Delete what was saved."""
        self._do_once(f"delete {path}", *self._take(path), delete)

    def _do_once(self, what: str, paths: set[str], mine: set[str], do: Callable[[], None]) -> None:
        """Let rank 0 do what concerns ``paths``, and this rank if they are ``mine``."""
        at = self._at_next(what)
        if self._rank == 0:
            self._wait_for_others(at, paths)
            _told(at, do)
        elif self._meets(at):
            comes_from_rank_0(f"{at}/done")
        elif mine:
            with suppress(FileNotFoundError):  # rank 0 may have written there later
                do()

    def _meets(self, at: str, number: int | None = None) -> bool:
        """Tell whether rank 0 comes to ``at``, too; for this rank that is its save ``number``."""
        store = _store()
        store.set(f"{at}/{self._rank}", b"")
        begun = glanced = time.monotonic()
        limit = begun + PATIENCE
        while not store.check([f"{at}/begun"]):
            now = time.monotonic()
            if number is not None and store.check([f"nbmgpu/saves/{number}"]):
                limit, number = min(limit, now + GRACE), None
            if now - glanced > GLANCE:
                glanced = now
                if _is_ahead():
                    limit = now
            if now >= limit or store.check([GONE]):
                return bool(store.check([f"{at}/begun"]))
            time.sleep(min(0.01, 0.001 + (now - begun) / 10))
        return True

    def _wait_for_others(self, at: str, paths: set[str]) -> None:
        """Wait until all ranks have come to ``at``; once in vain is enough."""
        store, others = _store(), range(1, dist.get_world_size())
        saves = [f"nbmgpu/save {path}/{self._times[f'save {path}']}" for path in list(paths)[:8]]
        together = store.check([f"{save}/{rank}" for save in saves for rank in others])
        deadline = time.monotonic() + (PATIENCE if together else ALONE)
        while self._patient and not store.check([f"{at}/{rank}" for rank in others]):
            if time.monotonic() > deadline:
                self._patient = False
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
        aside = f"{path}.{os.getpid()}"
        if len(args) > place:
            args = (*args[:place], aside, *args[place + 1 :])
        else:
            kwargs = kwargs | {name: aside for name in NAMES if name in kwargs}
        result = save(*args, **kwargs)
        self._replace(aside, path)
        return result

    def _is_among_ranks(self) -> bool:
        return dist.is_initialized() and dist.get_world_size() > 1

    def _add(self, path: str) -> None:
        if path not in self._saved:
            self._saved.add(path)
            self._folders.update(map(str, PurePath(path).parents))

    def _take(self, place: str) -> tuple[set[str], set[str]]:
        """Forget what was saved at or in ``place``; return it, and what of it is this rank's."""
        with self._lock:
            prefix = f"{place}/"
            found = {path for path in self._saved if path == place or path.startswith(prefix)}
            mine = found & self._mine
            self._saved -= found
            self._mine -= found
            self._folders.discard(place)
        return found, mine

    def _at_next(self, what: str) -> str:
        """Return the key for the next time that this rank does ``what``."""
        with self._lock:
            self._times[what] += 1
            return f"nbmgpu/{what}/{self._times[what]}"


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
