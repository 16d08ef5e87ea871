"""Seeds for generators created without one: ``default_rng()``, ``Random()``, ``torch.seed()``.

On one device, such seeds come from the system's entropy.  If each rank asked the system, ranks
would split data differently, and one would train on what another validates with.  So all ranks
derive these seeds from one seed and the line of the cell.

Within a step, each rank draws for its own samples, so the seeds also depend on its data-parallel
rank; those of a DataLoader worker depend on that rank and on the worker's seed.  Other child
processes ask the system, and so does ``tempfile``, whose names must differ between ranks.
"""

from __future__ import annotations

import functools
import os
import random
import secrets
import sys
from collections import Counter
from typing import Any

import torch
from torch.utils.data import get_worker_info

from nbmgpu.patches import PatchStack

from .streams import RandomStreams


class SeedSource:
    """A source of seeds that is the same on all ranks."""

    def __init__(self, streams: RandomStreams, seed: str) -> None:
        """Create the source.

        Args:
            streams: know whether a step is in progress.
            seed: the seed of the run, the same on all ranks and different in each run.
        """
        self._streams = streams
        self._process = os.getpid()
        self._seed = seed
        self._draws: Counter[str] = Counter()

    def bits(self, count: int) -> int:
        """Return ``count`` random bits as an integer."""
        scope = self._scope()
        if scope is None:
            return secrets.randbits(count)
        key = f"{scope} {_call_site()}"  # draws of a single rank elsewhere do not affect this one
        self._draws[key] += 1
        return random.Random(f"{self._seed} {key} {self._draws[key]}").getrandbits(count)

    def _scope(self) -> str | None:
        """Return a name of the processes that draw the same numbers now; None for only this one.

        Ranks with the same ``dp_rank`` do so in a step, and corresponding workers of their loaders.
        """
        if os.getpid() != self._process:
            worker = get_worker_info()
            if worker is None:
                return None
            return f"worker {self._streams.dp_rank} {worker.seed}"
        return f"step {self._streams.dp_rank}" if self._streams.in_step else "all"

    def install(self) -> None:
        """Patch Python's, NumPy's and torch's generators to take their seeds from here."""
        self._install_for_python()
        patches = PatchStack()
        patches.replace("numpy.random.bit_generator.randbits", self.bits)
        patches.replace("torch.seed", self._seed_torch)
        patches.replace("torch.random.seed", self._seed_torch)

    def _install_for_python(self) -> None:
        seed = random.Random.seed

        @functools.wraps(seed)
        def patched_seed(generator: random.Random, a: Any = None, version: int = 2) -> None:
            if a is None and not _is_for_tempfile():
                a = self.bits(2496)  # as many as Python takes from the system
            seed(generator, a, version)

        patches = PatchStack()
        patches.replace("random.Random.seed", patched_seed)
        patches.wrap("random.seed", lambda method: method.__self__.seed)

    def _seed_torch(self) -> int:
        value = self.bits(63)
        torch.manual_seed(value)
        return value


def _is_for_tempfile() -> bool:
    frame = sys._getframe(2)  # the caller of seed(), which is the generator's __init__
    callers = (frame, frame.f_back)
    return any(f is not None and f.f_globals.get("__name__") == "tempfile" for f in callers)


def _call_site() -> str:
    """Return file and line of the innermost frame of the notebook's code, else an empty string."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == "__main__":
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
