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
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from nbmgpu.rank.store.default_store import default_store
from nbmgpu.rank.store.rendezvous import MISMATCH, Rendezvous, Save, is_rank_0_ahead

from .atomic_writes import AtomicWriter, audit_write, path_argument
from .paths import resolve_parent
from .saved_files import SavedFiles

FETCH_MODULE = "torch.utils.data._utils.fetch"


class Saves:
    """Lets rank 0 save, rename and delete the files that all ranks save.

    Attributes:
        files: the files that have been saved.
        writer: writes them.
        join_save: takes part in the gathers of rank 0 while that pickles a value.
        failures: errors of saves on rank 0, which then goes on to the next one, as the other ranks
            do; None if they are raised.
    """

    def __init__(
        self, rank: int, is_private: Callable[[str], bool], on_shared: Callable[[str], None]
    ) -> None:
        """Save on ``rank``.

        Args:
            rank: of this process.
            is_private: returns whether no other rank can have a path.
            on_shared: is called with a path that rank 0 writes instead of this rank.
        """
        self.files = SavedFiles()
        self.writer = AtomicWriter()
        self.join_save: Callable[[Any], None] = lambda value: None
        self.failures: list[Exception] | None = None
        self._rank = rank
        self._is_private = is_private
        self._on_shared = on_shared
        self._process = os.getpid()
        self._unlink = os.unlink  # before it is patched
        self._rendezvous = Rendezvous(rank)

    def wrap(
        self, save: Callable[..., Any], position: int, pickles: bool = False
    ) -> Callable[..., Any]:
        """Return a wrapper of ``save`` that writes each file once.

        Args:
            save: a function that saves.
            position: position of its path argument.
            pickles: whether it pickles objects, which all ranks may have to gather.
        """

        @functools.wraps(save)
        def saving(*args: Any, **kwargs: Any) -> Any:
            given = path_argument(position, args, kwargs)
            if not isinstance(given, str | os.PathLike) or not _is_among_ranks():
                return save(*args, **kwargs)
            path = os.path.realpath(given)
            if self._is_private(path):
                return save(*args, **kwargs)
            audit_write(path)
            in_place = functools.partial(save, *args, **kwargs)
            atomic = functools.partial(self.writer.write, path, save, position, args, kwargs)
            if not self.is_active or _is_fetching():
                self.files.written_here.add(path)
                return atomic()
            if self._rank == 0:
                return self._save_for_all(path, in_place, atomic)
            pickled = (args[0] if args else kwargs.get("obj")) if pickles else None
            return self._leave_to_rank_0(path, in_place, atomic, pickled)

        return saving

    def _save_for_all(
        self, path: str, in_place: Callable[[], Any], atomic: Callable[[], Any]
    ) -> Any:
        """Save on rank 0, in place if the file exists and no other rank has written it."""
        save, previous = self._begin(path)
        store = default_store()
        store.set(_shared_key(path), b"")
        store.set(save.number_key, b"")
        repeated = previous and not save.path_key.endswith("/1")  # in one step
        if repeated or (not previous and os.path.lexists(path)):  # others may be reading it
            self._rendezvous.wait_for_others(save.path_key, [previous] if previous else [])
        overwrite = os.path.lexists(path) and not store.check([_own_key(path)])
        try:
            return self._rendezvous.run_on_rank_0(save.path_key, in_place if overwrite else atomic)
        except Exception as error:
            if self.failures is None:
                raise
            self.failures.append(error)

    def _leave_to_rank_0(
        self, path: str, in_place: Callable[[], Any], atomic: Callable[[], Any], pickled: Any
    ) -> Any:
        """Wait for rank 0; where it does not save to ``path``, save it here."""
        save, _ = self._begin(path)
        self._on_shared(path)
        store = default_store()
        joined = self._rendezvous.rank_0_arrives(save.path_key, save.number_key, _shared_key(path))
        if not joined and not store.check([_shared_key(path)]):
            self.files.written_here.add(path)
            store.set(f"{save.number_key}/{MISMATCH}", b"")
            store.set(_own_key(path), b"")
            is_file = os.path.isfile(path) or not os.path.lexists(path)
            return atomic() if is_file else in_place()
        self.files.written_here.discard(path)
        if pickled is not None and (joined or not is_rank_0_ahead()):
            self.join_save(pickled)
        if joined:  # otherwise the file that rank 0 wrote there earlier counts
            with suppress(OSError):  # rank 0 raises it too, which ends the run if not caught
                self._rendezvous.wait_until_done(save.path_key)
        return None

    @property
    def is_active(self) -> bool:
        """Whether this is one of several ranks, and not a process forked from one."""
        return os.getpid() == self._process and _is_among_ranks()

    def has(self, path: Any) -> bool:
        """Return whether a file was saved at ``path``, or in the folder ``path``."""
        if not self.files or not isinstance(path, str | os.PathLike) or not self.is_active:
            return False
        return self.files.has(resolve_parent(path))

    def link(self, make: Callable[[], None], path: str) -> None:
        """Create a link at ``path`` on rank 0; other ranks wait for it as for a save.

        Raises:
            OSError: it failed on rank 0, and so on all ranks: the link exists already.
        """
        save, _ = self._begin(path)
        store = default_store()
        if self._rank == 0:
            store.set(_shared_key(path), b"")
            store.set(save.number_key, b"")
            self._rendezvous.run_on_rank_0(save.path_key, make)
        elif self._rendezvous.rank_0_arrives(save.path_key, save.number_key, _shared_key(path)):
            self._rendezvous.wait_until_done(save.path_key)
        elif not store.check([_shared_key(path)]):
            self.files.written_here.add(path)
            make()

    def move(self, rename: Callable[[Any, Any], None], src: Any, dst: Any) -> None:
        """Rename a saved file or folder; ranks may have had different names for it before.

        Raises:
            OSError: it failed on rank 0, and so on all ranks, such as to another file system.
        """
        old, new = resolve_parent(src), resolve_parent(dst)
        saves, written_here = self.files.take(old)
        key, number = self._rendezvous.next_key(f"move {new}"), self._rendezvous.next_key("number")
        only_here = bool(written_here) and written_here == saves.keys()
        if self._rank == 0:
            default_store().set(number, b"")
            self._rendezvous.wait_for_others(key, list(saves.values()))
        joined = self._rank == 0 or self._rendezvous.rank_0_arrives(key, number)
        try:
            if self._rank == 0:
                self._rendezvous.run_on_rank_0(key, functools.partial(rename, src, dst))
            elif joined:
                self._rendezvous.wait_until_done(key)
                if only_here:
                    self._unlink(old)
            elif only_here:
                rename(src, dst)
        except OSError:
            self.files.put(old, saves, written_here)
            raise
        self.files.put(new, saves, set() if joined else written_here)

    def delete(self, delete: Callable[[], None], path: str) -> None:
        """Delete a saved file or folder."""
        saves, written_here = self.files.take(path)
        if written_here and written_here == saves.keys():
            with suppress(FileNotFoundError):  # rank 0 may have saved to it later
                delete()
            return
        key = self._rendezvous.next_key(f"delete {path}")
        if self._rank == 0:
            self._rendezvous.wait_for_others(key, list(saves.values()))
            self._rendezvous.run_on_rank_0(key, delete)
        elif self._rendezvous.rank_0_arrives(key):
            self._rendezvous.wait_until_done(key)

    def clear(self, delete: Callable[[], None], folder: str) -> None:
        """Delete a folder without files saved here: other ranks wait if it exists for them."""
        key = self._rendezvous.next_key(f"clear {folder}")
        if self._rank == 0:
            self._rendezvous.run_on_rank_0(key, delete)
        elif os.path.isdir(folder) and self._rendezvous.rank_0_arrives(key):
            with suppress(OSError):
                self._rendezvous.wait_until_done(key)

    def _begin(self, path: str) -> tuple[Save, Save | None]:
        """Begin a save of ``path``; return it, and the previous one."""
        save = Save(self._rendezvous.next_key(f"save {path}"), self._rendezvous.next_key("number"))
        return save, self.files.replace(path, save)


def _shared_key(path: str) -> str:
    """Return the key that is set once rank 0 has saved to ``path``."""
    return f"nbmgpu/named {path}"


def _own_key(path: str) -> str:
    """Return the key that is set once another rank has saved to ``path``."""
    return f"nbmgpu/own {path}"


def _is_among_ranks() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1


def _is_fetching() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == FETCH_MODULE:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
