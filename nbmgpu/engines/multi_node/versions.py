"""The versions that the kernel and all nodes must have in common."""

from __future__ import annotations

import platform
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version


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
        return cls(python, *(_installed(f.name) for f in fields(cls)[1:]))

    def differences(self, other: Versions) -> list[str]:
        """Return how ``other`` differs, in words: ``torch 2.12.0 instead of 2.13.0``."""
        return [
            f"{f.name} {theirs or 'missing'} instead of {own}"
            for f in fields(self)
            if (own := getattr(self, f.name)) != (theirs := getattr(other, f.name))
        ]


def _installed(name: str) -> str:
    try:
        return version(name).partition("+")[0]  # 2.13.0+cpu and 2.13.0+cu130 exchange tensors
    except PackageNotFoundError:
        return ""
