"""What a process inherits from its parent, captured in the kernel and applied in the launcher.

Ranks are forked from a server that was started some time ago.  What the kernel would pass on now
is sent along with each request: environment variables, umask, resource limits, CPU affinity.
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

OPENMP_AFFINITY = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables by which OpenMP binds each thread of a process to a core."""


@dataclass(frozen=True)
class ProcessEnvironment:
    """What a process passes on to its children.

    Attributes:
        variables: environment variables.
        limits: soft and hard limit by the name of the resource, as in ``RLIMIT_NOFILE``.
        umask: permissions that new files do not get; None where the system does not report it.
        cores: CPU affinity; None where the system does not report it.
    """

    variables: dict[str, str]
    limits: dict[str, tuple[int, int]]
    umask: int | None
    cores: list[int] | None

    @classmethod
    def capture(cls) -> ProcessEnvironment:
        """Return what this process would pass on."""
        limits = {}
        for name in dir(resource):
            if name.startswith("RLIMIT_"):
                with suppress(OSError, ValueError):  # a sandbox may refuse one
                    limits[name] = resource.getrlimit(getattr(resource, name))
        return cls(dict(os.environ), limits, _umask(), _cores())

    def apply(self) -> None:
        """Make this process as if that one had started it, as far as it may."""
        os.environ.clear()
        os.environ.update(self.variables)
        time.tzset()  # the C library has read TZ long ago
        for name, (soft, hard) in self.limits.items():
            number = getattr(resource, name)
            with suppress(OSError, ValueError):
                current = resource.getrlimit(number)
                if current != (soft, hard) and hard != current[1]:
                    with suppress(OSError, ValueError):  # raising it takes a privilege
                        resource.setrlimit(number, (current[0], hard))
                if current[0] != soft:
                    resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))
        if self.umask is not None:
            os.umask(self.umask)
        if self.cores is not None and sys.platform == "linux":
            with suppress(OSError):
                os.sched_setaffinity(0, self.cores)


def _umask() -> int | None:
    """Return the umask; ``os.umask`` would have to change it for a moment."""
    with suppress(OSError, StopIteration):
        lines = STATUS.read_bytes().splitlines()
        return int(next(line for line in lines if line.startswith(b"Umask:")).split()[1], 8)
    return None


def _cores() -> list[int] | None:
    """Return the cores of this thread; None where OpenMP has bound it to a core of its own."""
    if sys.platform != "linux" or any(os.environ.get(name) for name in OPENMP_AFFINITY):
        return None
    return sorted(os.sched_getaffinity(0))
