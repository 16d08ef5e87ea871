"""Files that libraries save for the cell: ``torch.save``, safetensors, tokenizers.

A path that all ranks save to is written once, by rank 0, and the others continue when it exists:
``os.path.exists``, or reading the path back, gives the same result on all ranks.  Rank 0 also
renames and deletes saved files, when the other ranks have finished with them.

A path that rank 0 does not save to (in a temporary folder, or with the time or the rank in its
name) is written by the rank that does.  So is a file that a loader saves while it fetches: ranks
fetch different samples.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath
from typing import Any

import torch.distributed as dist

from nbmgpu.rank.store.rendezvous import MISMATCH, Rendezvous, Save, default_store, is_rank_0_ahead

NAMES = ("f", "filename", "path")
"""Names of the path argument of functions that save."""

FETCHING = "torch.utils.data._utils.fetch"


class Saves:
    """The saves of one rank."""

    def __init__(
        self, rank: int, is_own: Callable[[str], bool], forget: Callable[[str], None]
    ) -> None:
        """Save on ``rank``.

        Args:
            rank: of this process.
            is_own: returns whether no other rank can have a path.
            forget: is called with a path that rank 0 writes instead of this rank.
        """
        self._rank = rank
        self._is_own = is_own
        self._forget = forget
        self.join_save: Callable[[Any], None] = lambda value: None
        self._process = os.getpid()
        self._rename, self._unlink = os.replace, os.unlink  # before they are patched
        self._rendezvous = Rendezvous(rank)
        self._lock = threading.Lock()
        self._saved: dict[str, Save] = {}
        self._folders: set[str] = set()
        self.mine: set[str] = set()
        """Paths that this rank has written itself."""
        self.aside: set[str] = set()
        """Paths that it is writing, to be renamed when they are complete."""

    def wrap(
        self, save: Callable[..., Any], place: int, pickles: bool = False
    ) -> Callable[..., Any]:
        """Return a wrapper of ``save`` that writes each file once.

        Args:
            save: a function that saves.
            place: position of its path argument.
            pickles: whether it pickles objects, which all ranks may have to gather.
        """

        @functools.wraps(save)
        def saving(*args: Any, **kwargs: Any) -> Any:
            given: Any = args[place] if len(args) > place else None
            given = given or next((kwargs[n] for n in NAMES if n in kwargs), None)
            if not isinstance(given, str | os.PathLike) or not _is_among_ranks():
                return save(*args, **kwargs)
            path = os.path.realpath(given)
            if self._is_own(path):
                return save(*args, **kwargs)
            plain = functools.partial(save, *args, **kwargs)
            whole = functools.partial(self._write_whole, path, save, place, args, kwargs)
            if not self.is_here or _is_fetching():
                self.mine.add(path)
                return whole()
            if self._rank == 0:
                return self._save_for_all(path, plain, whole)
            pickled = (args[0] if args else kwargs.get("obj")) if pickles else None
            return self._leave_to_rank_0(path, plain, whole, pickled)

        return saving

    def _save_for_all(self, path: str, plain: Callable[[], Any], whole: Callable[[], Any]) -> Any:
        save, before = self._enter(path)
        store = default_store()
        store.set(_named(path), b"")
        store.set(save.number_key, b"")
        again = before and not save.path_key.endswith("/1")  # in one step
        if again or (not before and os.path.lexists(path)):  # others may be reading it
            self._rendezvous.wait_for_others(save.path_key, [before] if before else [])
        in_place = os.path.lexists(path) and not store.check([_owned(path)])
        return self._rendezvous.run_on_rank_0(save.path_key, plain if in_place else whole)

    def _leave_to_rank_0(
        self, path: str, plain: Callable[[], Any], whole: Callable[[], Any], pickled: Any
    ) -> Any:
        """Wait for rank 0; where it does not save to ``path``, save it here."""
        save, _ = self._enter(path)
        self._forget(path)
        store = default_store()
        met = self._rendezvous.rank_0_arrives(save.path_key, save.number_key, _named(path))
        if not met and not store.check([_named(path)]):
            self.mine.add(path)
            store.set(f"{save.number_key}/{MISMATCH}", b"")
            store.set(_owned(path), b"")
            return whole() if os.path.isfile(path) or not os.path.lexists(path) else plain()
        self.mine.discard(path)
        if pickled is not None and (met or not is_rank_0_ahead()):
            self.join_save(pickled)
        if met:  # otherwise the file that rank 0 wrote there earlier counts
            with suppress(OSError):  # rank 0 raises it too, which ends the run if not caught
                self._rendezvous.wait_until_done(save.path_key)
        return None

    @property
    def is_here(self) -> bool:
        """Whether this is a rank with others, and not a process forked from one."""
        return os.getpid() == self._process and _is_among_ranks()

    def has(self, path: Any) -> bool:
        """Return whether a file was saved at ``path``, or in the folder ``path``."""
        if not self._saved or not isinstance(path, str | os.PathLike) or not self.is_here:
            return False
        place = place_of(path)
        return place in self._saved or place in self._folders

    def link(self, make: Callable[[], None], path: str) -> None:
        """Create a link at ``path`` on rank 0; other ranks wait for it as for a save.

        Raises:
            OSError: it failed on rank 0, and so on all ranks: the link exists already.
        """
        save, _ = self._enter(path)
        store = default_store()
        if self._rank == 0:
            store.set(_named(path), b"")
            store.set(save.number_key, b"")
            self._rendezvous.run_on_rank_0(save.path_key, make)
        elif self._rendezvous.rank_0_arrives(save.path_key, save.number_key, _named(path)):
            self._rendezvous.wait_until_done(save.path_key)
        elif not store.check([_named(path)]):
            self.mine.add(path)
            make()

    def move(self, rename: Callable[[Any, Any], None], src: Any, dst: Any) -> None:
        """Rename a saved file or folder; ranks may have had different names for it before.

        Raises:
            OSError: it failed on rank 0, and so on all ranks, such as to another file system.
        """
        old, new = place_of(src), place_of(dst)
        found, mine = self._take(old)
        at, number = self._rendezvous.next_key(f"move {new}"), self._rendezvous.next_key("number")
        alone = bool(mine) and mine == found.keys()
        if self._rank == 0:
            default_store().set(number, b"")
            self._rendezvous.wait_for_others(at, list(found.values()))
        met = self._rank == 0 or self._rendezvous.rank_0_arrives(at, number)
        try:
            if self._rank == 0:
                self._rendezvous.run_on_rank_0(at, functools.partial(rename, src, dst))
            elif met:
                self._rendezvous.wait_until_done(at)
                if alone:
                    self._unlink(old)
            elif alone:
                rename(src, dst)
        except OSError:
            self._keep(found, mine, old, old)
            raise
        self._keep(found, set() if met else mine, old, new)

    def delete(self, delete: Callable[[], None], path: str) -> None:
        """Delete a saved file or folder."""
        found, mine = self._take(path)
        if mine and mine == found.keys():
            with suppress(FileNotFoundError):  # rank 0 may have saved to it later
                delete()
            return
        at = self._rendezvous.next_key(f"delete {path}")
        if self._rank == 0:
            self._rendezvous.wait_for_others(at, list(found.values()))
            self._rendezvous.run_on_rank_0(at, delete)
        elif self._rendezvous.rank_0_arrives(at):
            self._rendezvous.wait_until_done(at)

    def clear(self, delete: Callable[[], None], folder: str) -> None:
        """Delete a folder without files saved here: other ranks wait if it exists for them."""
        at = self._rendezvous.next_key(f"clear {folder}")
        if self._rank == 0:
            self._rendezvous.run_on_rank_0(at, delete)
        elif os.path.isdir(folder) and self._rendezvous.rank_0_arrives(at):
            with suppress(OSError):
                self._rendezvous.wait_until_done(at)

    def _write_whole(
        self,
        path: str,
        save: Callable[..., Any],
        place: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Save to a temporary name, and rename: another rank may read or write the path."""
        aside = f"{path}.{os.getpid()}-{threading.get_ident()}"
        if len(args) > place:
            args = (*args[:place], aside, *args[place + 1 :])
        else:
            kwargs = kwargs | {name: aside for name in NAMES if name in kwargs}
        self.aside.add(aside)
        try:
            result = save(*args, **kwargs)
            self._rename(aside, path)
        except BaseException:
            with suppress(FileNotFoundError):
                self._unlink(aside)
            raise
        finally:
            self.aside.discard(aside)
        return result

    def _enter(self, path: str) -> tuple[Save, Save | None]:
        """Begin a save of ``path``; return it, and the one before."""
        save = Save(self._rendezvous.next_key(f"save {path}"), self._rendezvous.next_key("number"))
        with self._lock:
            before = self._saved.get(path)
            self._add(path, save)
        return save, before

    def _add(self, path: str, save: Save) -> None:
        if path not in self._saved:
            self._folders.update(map(str, PurePath(path).parents))
        self._saved[path] = save

    def _keep(self, found: dict[str, Save], mine: set[str], old: str, new: str) -> None:
        """Record saves that were taken from ``old`` again, at ``new``."""
        with self._lock:
            for path, save in found.items():
                self._add(new + path[len(old) :], save)
            self.mine |= {new + path[len(old) :] for path in mine}

    def _take(self, place: str) -> tuple[dict[str, Save], set[str]]:
        """Remove and return the saves at or in ``place``, and which of them are this rank's."""
        with self._lock:
            prefix = f"{place}/"
            paths = [path for path in self._saved if path == place or path.startswith(prefix)]
            found = {path: self._saved.pop(path) for path in paths}
            mine = self.mine & found.keys()
            self.mine -= mine
            self._folders.discard(place)
        return found, mine


def place_of(path: str | os.PathLike[str]) -> str:
    """Return the real path of ``path`` without following a link in its last part.

    That is what is deleted and renamed.
    """
    folder, name = os.path.split(os.fspath(path).rstrip("/"))
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(folder), name)


def _named(path: str) -> str:
    """Return the key that is set once rank 0 has saved to ``path``."""
    return f"nbmgpu/named {path}"


def _owned(path: str) -> str:
    """Return the key that is set once another rank has saved to ``path``."""
    return f"nbmgpu/own {path}"


def _is_among_ranks() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1


def _is_fetching() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == FETCHING:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
