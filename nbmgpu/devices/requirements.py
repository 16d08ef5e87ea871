"""Requirements of a strategy that this environment does not meet, as text for all messages."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from nbmgpu.strategies import Profile

from .probe import torch_build


@dataclass(frozen=True)
class MissingRequirement:
    """A requirement that is not met.

    Attributes:
        needed: what is needed, in words that follow "needs".
        install: what to pass to ``pip install``.
    """

    needed: str
    install: str


def missing_requirement(profile: Profile) -> MissingRequirement | None:
    """Return what the strategy of ``profile`` requires and this environment lacks, or None."""
    missing = [p for p in profile.requirements.packages if importlib.util.find_spec(p) is None]
    if missing:
        needed = f"{' and '.join(missing)}, which is not installed here"
        return MissingRequirement(needed, " ".join(missing))
    least = profile.requirements.torch
    build = torch_build() if any(least) else None
    if build is not None and build.release < least:
        wanted = ".".join(map(str, least))
        needed = f"torch {wanted} or newer, and this is {build.version}"
        return MissingRequirement(needed, f"'torch>={wanted}'")
    return None


def refused_device(profile: Profile, kind: str) -> str:
    """Return why a strategy does not run on devices of this type, as a clause; empty if it does."""
    if kind in ("cpu", "cuda") or not profile.requirements.cuda:
        return ""
    return f"runs on CUDA's GPUs and on the CPU, and these devices are {kind}"
