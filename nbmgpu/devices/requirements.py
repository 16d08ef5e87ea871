"""What a strategy needs, and this environment lacks: said alike wherever it is refused."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from nbmgpu.strategies import Profile

from .probe import torch_build


@dataclass(frozen=True)
class Lack:
    """What is ``needed``, in words that go on after "needs", and what pip is to ``install``."""

    needed: str
    install: str


def lack_of(profile: Profile) -> Lack | None:
    """Return what the strategy of ``profile`` lacks here; None if it lacks nothing."""
    missing = [p for p in profile.packages if importlib.util.find_spec(p) is None]
    if missing:
        needed = f"{' and '.join(missing)}, which is not installed here"
        return Lack(needed, " ".join(missing))
    least = profile.min_torch
    build = torch_build() if any(least) else None
    if build is not None and build.release < least:
        wanted = ".".join(map(str, least))
        return Lack(f"torch {wanted} or newer, and this is {build.version}", f"'torch>={wanted}'")
    return None
