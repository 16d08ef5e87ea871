"""Where generators without a seed get one: ``default_rng()``, ``Random()``, ``torch.seed()``.

On one device the system decides.  Ranks that each asked the system would split data in different
ways, and one would train on what another validates with; so all have one source, for each line of
the cell.

Within a step each rank draws for samples of its own, and so do loader workers, which are other
processes: they ask the system, and so does ``tempfile``, whose names must differ.
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

from nbmgpu.patches import PatchStack

from .streams import RandomStreams


class SeedSource:
    """A source of seeds that is the same on all ranks."""

    def __init__(self, streams: RandomStreams, seed: str) -> None:
        """Begin with ``seed``, another for each run; ``streams`` tell when a step is under way."""
        self._streams = streams
        self._process = os.getpid()
        self._seed = seed
        self._drawn: Counter[str] = Counter()

    def bits(self, count: int) -> int:
        """Return a number of ``count`` random bits."""
        if self._streams.in_step or os.getpid() != self._process:
            return secrets.randbits(count)
        line = _line_of_cell()  # so that what one rank alone draws elsewhere changes nothing here
        self._drawn[line] += 1
        return random.Random(f"{self._seed} {line} {self._drawn[line]}").getrandbits(count)

    def install(self) -> None:
        """Let Python's, NumPy's and torch's generators take their seeds here from now on."""
        self._install_for_python()
        patches = PatchStack()
        patches.replace("numpy.random.bit_generator.randbits", self.bits)
        patches.replace("torch.seed", self._seed_torch)
        patches.replace("torch.random.seed", self._seed_torch)

    def _install_for_python(self) -> None:
        seed = random.Random.seed

        @functools.wraps(seed)
        def seeded(generator: random.Random, a: Any = None, version: int = 2) -> None:
            if a is None and not _is_for_temporary_names():
                a = self.bits(2496)  # as many as Python takes from the system
            seed(generator, a, version)

        patches = PatchStack()
        patches.replace("random.Random.seed", seeded)
        patches.wrap("random.seed", lambda method: method.__self__.seed)

    def _seed_torch(self) -> int:
        value = self.bits(63)
        torch.manual_seed(value)
        return value


def _is_for_temporary_names() -> bool:
    frame = sys._getframe(2)  # of seed()'s caller, which is the generator's __init__
    callers = (frame, frame.f_back)
    return any(f is not None and f.f_globals.get("__name__") == "tempfile" for f in callers)


def _line_of_cell() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == "__main__":
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
