"""The text of ``%mgpu info``: devices, the last run, versions and missing packages.

Versions are read from package metadata, without importing large packages and without creating a
CUDA context.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

from nbmgpu._version import __version__
from nbmgpu.devices.placement import place_ranks
from nbmgpu.devices.probe import Machine, probe, torch_build
from nbmgpu.engines.registry import get_engine
from nbmgpu.environment.packages import full_version
from nbmgpu.errors import OptionError
from nbmgpu.kernel import executor, held_ranks
from nbmgpu.options.run_options import RunOptions
from nbmgpu.report.text_format import headline, rank_lines
from nbmgpu.runs.engine_plugins import engine_names
from nbmgpu.strategies.mesh_sizes import describe_positions, parse_mesh

from . import engine_command

GIB = 1 << 30

REQUIRED = ("torch", "ipykernel", "ipython", "anywidget", "ipywidgets", "numpy", "pandas")
"""Packages that nbmgpu requires."""

FRONT_END = Path(__file__).parents[1] / "ui" / "static" / "panel.js"
"""Created by building labextension/.  Wheels have it; a clone that was not built has not."""

ORDER = (
    "by bus; CUDA may put the fastest first: %env CUDA_DEVICE_ORDER=PCI_BUS_ID, before torch "
    "uses one"
)
"""What to know where GPUs differ."""

OPTIONAL = {
    "jupyterlab": "notebooks in a browser",
    "transformers": "Hugging Face models and Trainer",
    "datasets": "Hugging Face datasets",
    "deepspeed": "DeepSpeed's ZeRO",
    "lightning": "Lightning's Trainer",
    "tqdm": "progress bars",
}
"""Optional packages and their purpose."""


def info_text(machine: Machine | None = None) -> str:
    """Return devices, versions and missing packages.

    Args:
        machine: the machine to describe; by default this machine is probed.
    """
    machine = machine or probe()
    sections = {
        "Devices": device_lines(machine),
        "Engines": engine_lines(),
        "Engine profiles": profile_lines(),
        "Last run": last_run_lines(),
        "Held ranks": held_lines(),
        "Versions": version_lines(),
        "GPU memory held by this kernel": kernel_memory_lines(),
        "Missing": missing_lines(machine),
    }
    shown = (f"{title}\n" + "\n".join(lines) for title, lines in sections.items() if lines)
    return "\n\n".join(shown)


def device_lines(machine: Machine) -> list[str]:
    """Return a line for each device, and the default placement of ranks."""
    rows = [
        (
            f"{machine.kind}:{gpu.index}",
            f"{gpu.name}, {_gib(gpu.memory_free)} free of {_gib(gpu.memory_total)}"
            if gpu.memory_total
            else f"{gpu.name}, memory unknown",
        )
        for gpu in machine.gpus
    ]
    rows.append(("cpu", f"{machine.cores} core(s), {_gib(machine.memory)} memory"))
    placement = place_ranks(RunOptions(), machine)
    default = placement.notice or f"one rank on each of {', '.join(placement.devices)}"
    rows += [("unusable", clause) for clause in machine.lost]
    unlike = len({gpu.name for gpu in machine.gpus}) > 1
    if unlike and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        rows.append(("order", ORDER))
    if machine.hidden:
        rows.append(("hidden", machine.hidden))
    return _table([*rows, ("default", default)])


def engine_lines() -> list[str]:
    """Return a line for each engine that this machine can use, if there are several."""
    engines = {name: get_engine(name) for name in engine_names()}
    engines = {name: engine for name, engine in engines.items() if not engine.missing()}
    if len(engines) == 1:
        return []
    lifetimes = {False: "runs end with this kernel", True: "runs outlive this kernel"}
    return _table((name, lifetimes[engine.outlives_kernel]) for name, engine in engines.items())


def profile_lines() -> list[str]:
    """Return a line for each profile, or why they cannot be read."""
    try:
        return [f"  {line}" for line in engine_command.profile_lines()]
    except OptionError as error:
        return [f"  {error}"]


def last_run_lines() -> list[str]:
    """Return how the newest run of this kernel is laid out; with a mesh, where each rank is."""
    run = executor.last_run
    if run is None:
        return []
    record = run.record
    places = describe_positions(parse_mesh(record.options.values.get("mesh") or ()))
    return [f"  {run.id}  {headline(record)}", *(f"  {line}" for line in rank_lines(places))]


def held_lines() -> list[str]:
    """Return what ranks hold since ``--hold``, if some do."""
    text = held_ranks.description()
    return [f"  {text}", f"  {held_ranks.RELEASE} ends them."] if text else []


def version_lines() -> list[str]:
    """Return a line for each installed package."""
    rows = [("nbmgpu", __version__), ("python", platform.python_version())]
    for name in (*REQUIRED, *OPTIONAL):
        if found := full_version(name):
            build = torch_build() if name == "torch" else None
            rows.append((name, f"{found} ({build.label} build)" if build else found))
    return _table(rows)


def missing_lines(machine: Machine) -> list[str]:
    """Return a line for each missing component, with the command that installs it."""
    needed = [name for name in REQUIRED if not full_version(name)]
    rows = [(name, "needed by nbmgpu", f"pip install {name}") for name in needed]
    build = torch_build()
    if machine.gpus and machine.kind == "cuda" and build and not build.cuda:
        reinstall = "pip install --force-reinstall torch"
        rows.append(("CUDA", f"torch is a {build.label} build", reinstall))
    rows += [
        (name, purpose, f"pip install {name}")
        for name, purpose in OPTIONAL.items()
        if not full_version(name)
    ]
    if not FRONT_END.exists():
        how = "make front in the clone (needs Node.js 20), or reinstall with pip"
        rows.append(("front end", "panel, picker and JupyterLab sidebar are not built", how))
    return _table([*rows])


def kernel_memory_lines() -> list[str]:
    """Return the memory that torch has reserved on each GPU in this process, if any.

    It is not available to the ranks.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    from nbmgpu.environment.accelerator import initialized_module

    kind, module = initialized_module()
    if not hasattr(module, "memory_reserved"):  # also without a module
        return []
    rows = []
    for index in range(module.device_count()):
        if reserved := module.memory_reserved(index):
            used = module.memory_allocated(index)
            rows.append(
                (f"{kind}:{index}", f"{_gib(reserved)} reserved, {_gib(used)} used by tensors")
            )
    if rows:
        rows.append(
            ("", f"to free it for the ranks, del the tensors and call torch.{kind}.empty_cache()")
        )
    return _table(rows)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size else "unknown"


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Format rows as lines with aligned columns."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
