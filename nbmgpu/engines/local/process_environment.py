"""What a process has from the one that starts it.

Ranks are forked from a server that was started some time ago.  What the kernel would hand on now
is sent along, and the launcher takes it on: variables, the mask of new files, limits, cores.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")

BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables by which OpenMP binds each thread of a process to a core."""


@dataclass(frozen=True)
class Inheritance:
    """What one process hands on.

    Attributes:
        environment: its variables.
        limits: the soft and the hard limit by the name of the resource, as in ``RLIMIT_NOFILE``.
        umask: permissions that new files do not get; None where the system does not tell.
        cores: those that it may use; None where the system does not tell.
    """

    environment: dict[str, str]
    limits: dict[str, tuple[int, int]]
    umask: int | None
    cores: list[int] | None

    @classmethod
    def of_now(cls) -> Inheritance:
        """Return what this process would hand on."""
        limits = {}
        for name in dir(resource):
            if name.startswith("RLIMIT_"):
                with suppress(OSError, ValueError):  # a sandbox may refuse one
                    limits[name] = resource.getrlimit(getattr(resource, name))
        return cls(dict(os.environ), limits, _umask(), _cores())

    def take_on(self) -> None:
        """Be as if that process had started this one; what this one may not do is left out."""
        os.environ.clear()
        os.environ.update(self.environment)
        time.tzset()  # the C library has read TZ long ago
        for name, (soft, hard) in self.limits.items():
            number = getattr(resource, name)
            with suppress(OSError, ValueError):
                here = resource.getrlimit(number)
                if here != (soft, hard) and hard != here[1]:
                    with suppress(OSError, ValueError):  # to raise it takes a privilege
                        resource.setrlimit(number, (here[0], hard))
                if here[0] != soft:
                    resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))
        if self.umask is not None:
            os.umask(self.umask)
        if self.cores is not None and sys.platform == "linux":
            with suppress(OSError):
                os.sched_setaffinity(0, self.cores)


def _umask() -> int | None:
    """Return the mask of new files; to ask the system for it would be to set it for a moment."""
    with suppress(OSError, StopIteration):
        lines = STATUS.read_bytes().splitlines()
        return int(next(line for line in lines if line.startswith(b"Umask:")).split()[1], 8)
    return None


def _cores() -> list[int] | None:
    """Return the cores of this thread; None where it was OpenMP that has bound it to its own."""
    if sys.platform != "linux" or any(os.environ.get(name) for name in BINDING):
        return None
    return sorted(os.sched_getaffinity(0))
