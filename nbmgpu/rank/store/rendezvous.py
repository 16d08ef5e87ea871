"""Do ranks come to the same place of the cell?  Told by keys, as cells may lead only some there.

A *place* is a key that ranks make up alike: what is done, and the number of the step.  By the step,
as where one rank has been somewhere once more than others (``if rank == 0:``) all agree again from
the next step on.  None waits for ever.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from nbmgpu.rank import session

from .broadcast import GONE
from .desync import passes_begun

PATIENCE = 10.0
"""Seconds for which a rank waits until another one comes to the same place."""

GRACE = 0.3
"""The same where rank 0 has done as much, and so may have done this under another name."""

ALONE = 2.0
"""The same for rank 0 where others have not been where what it is about came from."""

GLANCE = 0.5
"""Seconds between looks how many steps rank 0 has begun."""

MISMATCH = "apart"
"""The end of a key: what a rank did there has another name than what rank 0 did."""


@dataclass(frozen=True)
class Save:
    """What a rank has saved: its place by path, and by the number of the save in the step."""

    path_key: str
    number_key: str


class Rendezvous:
    """The places that one rank has come to."""

    def __init__(self, rank: int) -> None:
        """Be on ``rank``."""
        self.rank = rank
        self._lock = threading.Lock()
        self._times: Counter[str] = Counter()
        self._missed: list[str] = []

    def next_key(self, what: str) -> str:
        """Return the place where this rank does ``what`` the next time in this step."""
        main = threading.current_thread() is threading.main_thread()
        step = f"{0 if session.current is None else session.current.begun}" if main else "thread"
        with self._lock:
            self._times[f"{what} {step}"] += 1
            return f"nbmgpu/{what}/{step}/{self._times[f'{what} {step}']}"

    def rank_0_arrives(self, place: str, number: str = "", known: str = "") -> bool:
        """Tell whether rank 0 comes to ``place``, too.

        Args:
            place: that of this rank.
            number: another place, to which rank 0 comes with whatever it does instead.
            known: a key that is there if rank 0 has done the same before; then it will again.
        """
        store = default_store()
        store.set(f"{place}/{self.rank}", b"")
        begun = glanced = time.monotonic()
        limit = begun + PATIENCE
        while not store.check([f"{place}/begun"]):
            now = time.monotonic()
            if number and store.check([number]) and not (known and store.check([known])):
                limit, number = min(limit, now + GRACE), ""
            if now - glanced > GLANCE:
                glanced = now
                if is_rank_0_ahead():
                    limit = now
            if now >= limit or store.check([GONE]):
                return bool(store.check([f"{place}/begun"]))
            time.sleep(min(0.01, 0.001 + (now - begun) / 10))
        return True

    def wait_until_done(self, place: str) -> None:
        """Wait until rank 0, which has come to ``place``, is through with it.

        Raises:
            OSError: it has failed there.
        """
        store = default_store()
        while not store.check([f"{place}/done"]):
            if store.check([GONE]):
                return
            time.sleep(0.002)
        if number := store.get(f"{place}/done").decode():
            raise OSError(int(number), os.strerror(int(number)))

    def run_on_rank_0(self, place: str, do: Callable[[], Any]) -> Any:
        """Do on rank 0 what the others wait for."""
        store, failed = default_store(), ""
        store.set(f"{place}/begun", b"")
        try:
            return do()
        except OSError as error:
            failed = str(error.errno or "")
            raise
        finally:  # also where it failed: the cell may go on
            store.set(f"{place}/done", failed)

    def wait_for_others(self, place: str, before: Sequence[Save]) -> None:
        """Wait on rank 0 until all have come to ``place``: they may need what was saved ``before``.

        Where they have not come to that either, rank 0 may be alone with it.  Once it has waited in
        vain, it waits less, until the others come to that, too.
        """
        store, others = default_store(), range(1, dist.get_world_size())
        if self._missed and store.check(self._missed):
            self._missed = []
        alone = ALONE if before and not self._missed else GRACE
        keys = [f"{place}/{rank}" for rank in others]
        joined = [f"{save.path_key}/{rank}" for save in before[:8] for rank in others]
        apart = [f"{save.number_key}/{MISMATCH}" for save in before[:8]]
        begun = time.monotonic()
        while not store.check(keys):
            waited = time.monotonic() - begun
            if any(store.check([key]) for key in apart):
                return
            if waited > PATIENCE or (waited > alone and self._may_be_alone(joined)):
                self._missed = keys if before else self._missed
                return
            time.sleep(0.002)

    def _may_be_alone(self, joined: Sequence[str]) -> bool:
        return bool(self._missed) or not joined or not default_store().check(list(joined))


def is_rank_0_ahead() -> bool:
    """Tell whether rank 0 has begun more steps than this rank: it came by here and did nothing."""
    current = session.current
    if current is None:
        return False
    theirs = passes_begun(current.recorder.events.path.with_name("rank-0.jsonl"))
    return theirs > current.begun


def default_store() -> Any:
    """Return the store that all ranks have."""
    return dist.distributed_c10d._get_default_store()
