"""Random streams of a rank.

The *notebook's stream* is the one that a single device would draw from.  Samplers use it, and so
does everything outside a sharded loader.  All ranks keep it in sync; rank 0 broadcasts it whenever
a sharded loader begins.  Inside a training step, torch draws from the *rank's own stream*, so that
dropout masks and noise differ between ranks.  While samples are loaded, Python and NumPy do, too.
Where all ranks hold the same samples, there is only the notebook's stream.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from nbmgpu.environment import random_state
from nbmgpu.patches import PatchStack
from nbmgpu.rank.store.broadcast import broadcast_from_rank_0

from .generators import torch_states
from .host_rng import HostStream


@dataclass(frozen=True)
class StreamStates:
    """The states of all streams of a rank.

    Attributes:
        notebook: the notebook's stream, and Python's and NumPy's generators.
        own: the rank's own stream of torch; None outside of a step.
        host: of Python's and NumPy's generators, see ``HostStream.states``; None before a step.
    """

    notebook: random_state.RandomState
    own: Any
    host: Any


class RandomStreams:
    """The notebook's stream and the rank's own, one of which is active.

    The rank's own stream is active while any pass over a sharded loader is in progress.  Passes
    may be nested or interleaved, as with ``zip``.

    Attributes:
        dp_rank: the data-parallel rank; ranks that share it draw the same numbers.
        drew_in_fork: whether the cell has drawn within ``fork_rng`` in a step.
        host: the streams of Python's and NumPy's generators; None before the first step, or where
            there is only the notebook's stream.
    """

    def __init__(self, dp_rank: int, splits_batches: bool) -> None:
        """Start with the notebook's stream active."""
        self.dp_rank = dp_rank
        self._has_own = splits_batches
        self.begin_run()

    def begin_run(self) -> None:
        """Begin with the notebook's stream active, and streams of its own that have not begun."""
        self.drew_in_fork = False
        self._passes: set[int] = set()
        self._in_notebook_stream = False
        self._inactive_states: Any = None
        self._resumes = False
        self._last_states: Any = None  # of the own stream, at the end of the last pass
        self.host: HostStream | None = None

    @property
    def in_step(self) -> bool:
        """Whether the rank's own stream is active."""
        return bool(self._passes) and not self._in_notebook_stream

    def patch_fork_rng(self) -> None:
        """Patch ``fork_rng`` to record draws of the cell, which the stream does not show."""
        fork = torch.random.fork_rng

        @functools.wraps(fork)
        @contextmanager
        def watched_fork(*args: Any, **kwargs: Any) -> Iterator[None]:
            before = torch_states()
            with fork(*args, **kwargs):
                yield
                if self.in_step and before != torch_states():
                    self.drew_in_fork = True

        @functools.wraps(fork)
        def patched_fork(*args: Any, **kwargs: Any) -> Any:
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            # torch forks to repeat earlier draws, when it recomputes activations, and this package
            # to try optimizers.
            is_library = caller.startswith(("torch.", "nbmgpu."))
            return (fork if is_library else watched_fork)(*args, **kwargs)

        PatchStack().replace("torch.random.fork_rng", patched_fork)

    def sync_from_rank_0(self) -> None:
        """Set every rank's notebook stream to rank 0's."""
        with self.notebook_stream():
            random_state.restore(broadcast_from_rank_0(random_state.capture()))

    def enter_step(self, loader_pass: object, seed: int, resume: bool = False) -> None:
        """Activate the rank's own stream of torch for a pass over a loader.

        Args:
            loader_pass: the pass.
            seed: the seed of the rank's own streams, before ``dp_rank`` is added.
            resume: go on where the last pass ended, and use ``seed`` for the first one only.
        """
        if not self._has_own:
            return
        self.host = self.host or HostStream(self._own_seed(seed))  # seeded once per run
        if not self._passes:
            self._inactive_states = random_state.torch_states()
            self._resumes = resume
            if resume and self._last_states is not None:
                random_state.restore_torch(self._last_states)
            else:
                torch.manual_seed(self._own_seed(seed))
        self._passes.add(id(loader_pass))

    @contextmanager
    def notebook_stream(self) -> Iterator[None]:
        """Draw from the notebook's stream for a while, even within a step."""
        if not self.in_step or self.host is None:
            yield
            return
        self._swap()
        self._in_notebook_stream = True
        try:
            with self.host.notebook_states():
                yield
        finally:
            self._in_notebook_stream = False
            if self._passes:
                self._swap()

    def states(self) -> StreamStates:
        """Return the states of all streams."""
        now, host = random_state.capture(), self.host and self.host.states()
        if not self.in_step or self._inactive_states is None:
            return StreamStates(now, None, host)
        torch_state, gpu = self._inactive_states
        return StreamStates(replace(now, torch=torch_state, gpu=gpu), (now.torch, now.gpu), host)

    def restore(self, states: StreamStates) -> None:
        """Set all streams to ``states``, as far as this rank has them now."""
        random_state.restore(states.notebook)
        if self.in_step and self._inactive_states is not None:
            self._inactive_states = states.notebook.torch, states.notebook.gpu
            if states.own is not None:
                random_state.restore_torch(states.own)
        if self.host is not None and states.host is not None:
            self.host.restore(states.host)

    def _swap(self) -> None:
        states = random_state.torch_states()
        random_state.restore_torch(self._inactive_states)
        self._inactive_states = states

    def _own_seed(self, seed: int) -> int:
        return (seed + 7919 * self.dp_rank) % 2**63

    @staticmethod
    def broadcast_host_states() -> None:
        """Set the states of Python's and NumPy's generators to rank 0's on every rank."""
        python, numpy = random.getstate(), np.random.get_state()
        python, numpy = broadcast_from_rank_0((python, numpy))
        random.setstate(python)
        np.random.set_state(numpy)

    def leave_step(self, loader_pass: object) -> None:
        """Return to the notebook's stream if ``loader_pass`` was the last pass in progress."""
        if self._passes == {id(loader_pass)}:
            self.leave_all_steps()
        self._passes.discard(id(loader_pass))

    def leave_all_steps(self) -> None:
        """Return to the notebook's stream, even if passes are unfinished."""
        if self.in_step:
            if self._resumes:
                self._last_states = random_state.torch_states()
            random_state.restore_torch(self._inactive_states)
        self._passes.clear()
