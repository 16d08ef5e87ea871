"""Costs that grow with ranks, bytes and objects, by phase."""

from __future__ import annotations

import json

from benchmarks.kernels import ExecutedCell, Kernel
from benchmarks.measure import Call, Phases, Profile, Result, kernels, touch
from benchmarks.tools import FORGET, OURS

CELL = """%%mgpu --gpus {ranks} --cpu --strategy none
import torch.distributed as dist
if dist.get_world_size() > 1:
    dist.barrier()
{workload}
"""

TIMES = """
import json, nbmgpu
run = nbmgpu.last_run
events = [json.loads(line) for path in sorted((run.folder / "events").glob("rank-*.jsonl"))
        for line in path.read_text().splitlines()]
print(json.dumps([run.record.created,
    *(max(e["time"] for e in events if e["kind"] == "status" and e["state"] == state)
      for state in ("loading", "running", "collecting"))]))
"""
"""When the run was created, and when the last of its ranks entered each state."""

MAKE_DICTS = "dicts = [{{'x': torch.ones(8), 'n': n}} for n in range({count})]"
CHANGE = CELL.format(ranks=2, workload="for each in dicts: each['x'] += 1")

PROFILED = """
import cProfile, json, pstats, sys
profiler = cProfile.Profile()
profiler.runcall(get_ipython().run_cell_magic, "mgpu", {line!r}, {body!r})
modules = {{getattr(m, "__file__", None): name for name, m in [*sys.modules.items()]}}
rows = []
for (file, _, function), (_, calls, own, cumulative, _) in pstats.Stats(profiler).stats.items():
    module = "" if file == "~" else modules.get(file) or file.rpartition("/")[2]
    rows.append([f"{{module}}:{{function}}" if module else function, calls, own, cumulative])
print()
print(json.dumps(sorted(rows, key=lambda row: -row[2])[:8]))
"""
"""The magic is called as a function: IPython awaits a cell magic outside of the profiler."""

MIB = (1, 16, 256, 1024, 4096)
RANKS = (1, 2, 4, 8)
OBJECTS = (10, 100, 1000, 10_000)


def measure(rounds: int) -> list[Result]:
    """Measure launches by ranks, and runs by the bytes and objects that are sent."""
    results: list[Result] = []
    with kernels([OURS], "import torch") as running:
        kernel = running[OURS]
        kernel.run(CELL.format(ranks=2, workload="pass"))
        for _ in range(min(rounds, 3)):
            results += _by_ranks(kernel)
            results += _by_bytes(kernel)
            results += _sent_by_ranks(kernel)
            results += _by_objects(kernel)
        results.append(_profiled(kernel, OBJECTS[-1]))
    return results


def _by_ranks(kernel: Kernel) -> list[Result]:
    return [
        _profile(
            "a trivial cell",
            _format_ranks(ranks),
            kernel,
            CELL.format(ranks=ranks, workload="pass"),
        )
        for ranks in RANKS
    ]


def _by_bytes(kernel: Kernel) -> list[Result]:
    """Measure runs that read a tensor, twice each: the second run reuses the data of the first."""
    results = []
    cell = CELL.format(ranks=2, workload="assert X.sum().item() > 0")
    for size in MIB:
        touch(2.5 * size / 1024)
        kernel.run(f"{FORGET}\nX = torch.ones({size} << 18)")
        case = f"{size} MiB" if size < 1024 else f"{size // 1024} GiB"
        results += [
            _profile("one tensor to 2 ranks", case, kernel, cell),
            _profile("one tensor to 2 ranks", f"{case}, again", kernel, cell),
        ]
        kernel.run("del X")
    return results


def _sent_by_ranks(kernel: Kernel) -> list[Result]:
    results = []
    for ranks in RANKS:
        touch(2.5)
        kernel.run(f"{FORGET}\nX = torch.ones(2**28)")
        cell = CELL.format(ranks=ranks, workload="assert X.sum().item() > 0")
        results.append(_profile("one tensor of 1 GiB", f"to {_format_ranks(ranks)}", kernel, cell))
        kernel.run("del X")
    return results


def _format_ranks(ranks: int) -> str:
    return f"{ranks} rank{'s' * (ranks > 1)}"


def _by_objects(kernel: Kernel) -> list[Result]:
    results = []
    for count in OBJECTS:
        kernel.run(MAKE_DICTS.format(count=count))
        results.append(_profile("dicts of a tensor, changed", f"{count:,}", kernel, CHANGE))
    return results


def _profiled(kernel: Kernel, count: int) -> Profile:
    kernel.run(MAKE_DICTS.format(count=count))
    first, _, body = CHANGE.partition("\n")
    line = first.removeprefix("%%mgpu").strip()
    rows = json.loads(kernel.run(PROFILED.format(line=line, body=body)).text.splitlines()[-1])
    return Profile(
        f"the kernel's process, {count:,} dicts of a tensor", tuple(Call(*row) for row in rows)
    )


def profile(kernel: Kernel, cell: str) -> dict[str, float]:
    """Run ``cell``; return its seconds by phase."""
    return phases(kernel, kernel.run(cell))


def _profile(workload: str, case: str, kernel: Kernel, cell: str) -> Phases:
    return Phases(workload, case, profile(kernel, cell))


def phases(kernel: Kernel, cell: ExecutedCell) -> dict[str, float]:
    """Return the seconds of the last cell by phase."""
    created, loading, running, collecting = json.loads(kernel.run(TIMES).text)
    return {
        "read, pickle": created - cell.sent,
        "fork": loading - created,
        "join, copy, map": running - loading,
        "cell": collecting - running,
        "write-back": cell.replied - collecting,
        "total": cell.replied - cell.sent,
    }
