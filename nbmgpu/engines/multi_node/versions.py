"""The versions that the kernel and all nodes must have in common."""

from __future__ import annotations

import platform
from dataclasses import dataclass, fields

from nbmgpu.environment.packages import Difference, installed_version


@dataclass(frozen=True)
class Versions:
    """Versions of what a bundle depends on.

    Attributes:
        python: ``3.11``: pickled functions contain its bytecode.
        torch, nbmgpu, cloudpickle: as installed; empty if they are not.
    """

    python: str
    torch: str
    nbmgpu: str
    cloudpickle: str

    @classmethod
    def of_this_process(cls) -> Versions:
        """Return the versions that this process would import."""
        python = ".".join(platform.python_version_tuple()[:2])
        return cls(python, *(installed_version(f.name) for f in fields(cls)[1:]))

    def differences(self, other: Versions) -> list[Difference]:
        """Return how ``other`` differs."""
        return [
            Difference(f.name, theirs, own)
            for f in fields(self)
            if (own := getattr(self, f.name)) != (theirs := getattr(other, f.name))
        ]
