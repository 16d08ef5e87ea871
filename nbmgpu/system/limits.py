"""How much CPU and memory this process may use: CPU affinity and control group limits.

A container may see 64 cores and have a quota of two; threads beyond that only wait.  Such limits
are in control groups (cgroups), of version 2 or 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")

MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of limit, usage and reclaimable usage (page cache), in cgroups of version 2 and 1."""


def usable_cores() -> int:
    """Return the number of cores that this process may keep busy, at least 1."""
    if sys.platform == "linux":
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, int(min(cores, cpu_quota())))


def usable_memory() -> int:
    """Return the bytes of memory that this process may use."""
    return min(int(psutil.virtual_memory().total), memory_limit())


def available_memory(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the bytes of memory available now: the machine's, or what is left of a limit."""
    available = int(psutil.virtual_memory().available)
    for folder in _cgroups("memory", root, membership):
        for limit_file, used_file, reclaimable in MEMORY_FILES:
            limit, used = _text(folder / limit_file), _text(folder / used_file)
            if limit.isdigit() and used.isdigit():  # no limit is written "max"
                counts = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
                page_cache = int(counts.get(reclaimable, 0))
                available = min(available, int(limit) - int(used) + page_cache)
    return available


def cpu_quota(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float:
    """Return the CPU quota in cores; infinity without one."""
    cores = []
    for folder in _cgroups("cpu", root, membership):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        quota = quota or _text(folder / "cpu.cfs_quota_us")
        period = period or _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # no limit is written "max" or -1
            cores.append(int(quota) / int(period))
    return min(cores, default=float("inf"))


def limited_cpu_time(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """Return the CPU seconds used under the tightest quota; None without one.

    Cgroups of version 1 do not report this beside the quota.
    """
    quotas = {}
    for folder in _cgroups("cpu", root, membership):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            quotas[folder] = int(quota) / int(period)
    if not quotas:
        return None
    tightest = min(quotas, key=lambda folder: quotas[folder])
    counts = dict(line.split() for line in _text(tightest / "cpu.stat").splitlines())
    return int(counts["usage_usec"]) / 1e6 if "usage_usec" in counts else None


def memory_limit(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the memory limit in bytes; ``sys.maxsize`` without one."""
    folders = list(_cgroups("memory", root, membership))
    texts = [_text(f / n) for f in folders for n in ("memory.max", "memory.limit_in_bytes")]
    return min((int(text) for text in texts if text.isdigit()), default=sys.maxsize)


def _cgroups(controller: str, root: Path, membership: Path) -> Iterator[Path]:
    """Yield the folder of each cgroup around this process, the outermost first.

    Inside a container the path in ``membership`` is often the host's, while ``root`` has the
    container's own cgroup at its top.  So folders may not exist.
    """
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        folder = root / controller if controllers else root  # version 2 has one tree for all
        yield folder
        for part in path.split("/"):
            if part not in ("", ".."):
                folder = folder / part
                yield folder


def _text(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
