"""Random streams of a rank.

The *notebook's stream* is the one that a single device would draw from: samplers
use it, and so does everything outside a split loader.  All ranks keep it in step;
rank 0's is handed to the others whenever a split loader begins.  Inside a training
step torch draws from a stream of the rank's own, so that dropout masks and noise
differ between ranks; while samples are loaded, Python and NumPy do, too.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch

from nbmgpu.environment import random_state
from nbmgpu.patches import PatchStack
from nbmgpu.rank.store.broadcast import broadcast_from_rank_0

from .host_rng import HostStream


class RandomStreams:
    """The notebook's stream and the rank's own, of which one is in place.

    The rank's own is in place while some pass over a split loader is under way; passes
    may lie within each other or side by side, as with ``zip``.
    """

    def __init__(self, rank: int) -> None:
        """Begin in the notebook's stream."""
        self.rank = rank
        self.drew_in_fork = False
        self._passes: set[int] = set()
        self._outside = False
        self._other: Any = None
        self._cuda: Any = None
        self.host: HostStream | None = None

    @property
    def in_step(self) -> bool:
        """Whether the rank's own stream is in place."""
        return bool(self._passes) and not self._outside

    def patch_fork_rng(self) -> None:
        """Note it when the cell draws in a step what leaves no trace in the stream."""
        fork = torch.random.fork_rng

        @functools.wraps(fork)
        @contextmanager
        def noted(*args: Any, **kwargs: Any) -> Iterator[None]:
            begun = _torch_states()
            with fork(*args, **kwargs):
                yield
                if self.in_step and begun != _torch_states():
                    self.drew_in_fork = True

        @functools.wraps(fork)
        def of_cell(*args: Any, **kwargs: Any) -> Any:
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            # torch recomputes in forks what was drawn before.
            return (fork if caller.startswith("torch.") else noted)(*args, **kwargs)

        PatchStack().replace("torch.random.fork_rng", of_cell)

    def sync_from_rank_0(self) -> None:
        """Put rank 0's notebook stream in place on every rank."""
        with self.notebook_stream():
            random_state.restore(broadcast_from_rank_0(random_state.capture()))

    def enter_step(self, of: object, seed: int) -> None:
        """Switch torch to the rank's own stream for the pass ``of``; begin it at ``seed``."""
        self.host = self.host or HostStream(self._own_seed(seed))  # which goes on for good
        if not self._passes:
            self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
            self._other = torch.get_rng_state()
            torch.manual_seed(self._own_seed(seed))
        self._passes.add(id(of))

    @contextmanager
    def notebook_stream(self) -> Iterator[None]:
        """Draw from the notebook's stream for a moment, also in the middle of a step."""
        if not self.in_step or self.host is None:
            yield
            return
        self._swap()
        self._outside = True
        try:
            with self.host.aside():
                yield
        finally:
            self._outside = False
            if self._passes:
                self._swap()

    def _swap(self) -> None:
        now = torch.get_rng_state()
        torch.set_rng_state(self._other)
        self._other = now
        if self._cuda is not None:
            now = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(self._cuda)
            self._cuda = now

    def _own_seed(self, seed: int) -> int:
        return (seed + 7919 * self.rank) % 2**63

    @staticmethod
    def broadcast_host_states() -> None:
        """Give Python's and NumPy's generators rank 0's state on every rank."""
        python, numpy = random.getstate(), np.random.get_state()
        python, numpy = broadcast_from_rank_0((python, numpy))
        random.setstate(python)
        np.random.set_state(numpy)

    def leave_step(self, of: object) -> None:
        """Return to the notebook's stream if the pass ``of`` was the last one under way."""
        if self._passes == {id(of)}:
            self.leave_all_steps()
        self._passes.discard(id(of))

    def leave_all_steps(self) -> None:
        """Return to the notebook's stream, whatever passes were left unfinished."""
        if self.in_step:
            torch.set_rng_state(self._other)
            if self._cuda is not None:
                torch.cuda.set_rng_state(self._cuda)
        self._passes.clear()


class DrawDetector:
    """Tells which generators have been drawn from since it was made.

    ``own`` are generators that the code has made for itself.  Without ``host``, Python's and
    NumPy's are not asked.
    """

    def __init__(self, own: Sequence[Any] = (), host: bool = True) -> None:
        """Remember the states of now."""
        self._own, self._asks_host = own, host
        self._torch, self._host = _torch_states(), self._host_states()

    @property
    def torch_drew(self) -> bool:
        """Whether torch has drawn, on the CPU or the GPU."""
        return self._torch != _torch_states()

    @property
    def host_drew(self) -> bool:
        """Whether Python's or NumPy's generator has drawn, or one of the code's own."""
        return self._host != self._host_states()

    def _host_states(self) -> tuple[Any, ...]:
        if not self._asks_host:
            return tuple(_state_of(generator) for generator in self._own)
        name, keys, position, *_ = np.random.get_state()
        own = [_state_of(generator) for generator in self._own]
        return random.getstate(), name, np.asarray(keys).tobytes(), position, own


OWN = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


def generators_in(values: Mapping[str, Any], but: Collection[int]) -> list[Any]:
    """Return the generators among ``values``, without those whose ids are given.

    These are what samplers draw from, for all ranks alike.
    """
    found = [value for value in list(values.values()) if isinstance(value, OWN)]
    return [generator for generator in found if id(generator) not in but]


def reachable_generators(frame: FrameType | None, but: Collection[int]) -> list[Any]:
    """Return the generators that the loop in ``frame`` may draw from, without those given by id.

    They are the cell's, variables of functions that lead to the loop, or attributes of objects
    of the notebook's own classes.
    """
    tables = [vars(sys.modules["__main__"])]
    while frame is not None and frame.f_code.co_name != "<module>":  # below that is the shell
        tables.append(frame.f_locals)
        frame = frame.f_back
    values = [value for table in tables for value in list(table.values())]
    own = (value for value in values if type(value).__module__ == "__main__")
    tables += [value.__dict__ for value in own if isinstance(getattr(value, "__dict__", 0), dict)]
    found = [each for table in tables for each in generators_in(table, but)]
    return list({id(each): each for each in found}.values())


def sampler_generator_ids(loader: Any) -> set[int]:
    """Return the ids of the generators that a loader and its samplers draw from."""
    holders = (loader, loader.sampler, loader.batch_sampler)
    tables = (getattr(holder, "__dict__", {}) for holder in holders)
    return {id(v) for table in tables for v in list(table.values()) if isinstance(v, OWN)}


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return repr(generator.get_state(legacy=False))
    try:
        return generator.getstate()
    except NotImplementedError:  # the system's, which has none
        return None


def _torch_states() -> list[bytes]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return [state.numpy().tobytes() for state in states]
