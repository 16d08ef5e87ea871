"""``--engine-option`` for Slurm."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from nbmgpu.errors import OptionError, closest_match, format_message

OF_SBATCH = (
    "account", "comment", "constraint", "exclude", "gres", "job-name",
    "licenses", "mem", "mem-per-gpu", "nodelist", "partition", "qos", "reservation", "time",
    "container", "container-image", "container-mounts", "exclusive", "nice", "tmp",
)  # fmt: skip
"""Keys that are passed to ``sbatch`` as they are: ``partition=gpu`` is ``--partition=gpu``."""

OWN = ("cpus-per-rank", "interface", "modules", "python")
KEYS = (*OF_SBATCH, *OWN)


@dataclass(frozen=True)
class JobOptions:
    """What a job is submitted with.

    Attributes:
        sbatch: options of ``sbatch``.
        cpus_per_rank: cores of each rank; None for the engine's default.
        interface: network interface for gloo and NCCL; empty for the one that leads to the head.
        modules: environment modules to load on the nodes, separated by blanks or commas.
        python: the Python interpreter on the nodes.
    """

    sbatch: Mapping[str, str]
    cpus_per_rank: int | None = None
    interface: str = ""
    modules: str = ""
    python: str = sys.executable

    @classmethod
    def of(cls, values: Mapping[str, str]) -> JobOptions:
        """Return the options of ``--engine-option``.

        Raises:
            OptionError: a key is unknown, or a value cannot be.
        """
        for key in values:
            if key not in KEYS:
                near = closest_match(key, KEYS) or "partition"
                what = f"Slurm's --engine-option has no key {key!r}"
                allowed = f"Keys: {', '.join(sorted(KEYS))}"
                raise OptionError(format_message(what, allowed, f"--engine-option {near}=..."))
        cpus = values.get("cpus-per-rank")
        if cpus is not None and not (cpus.isdecimal() and int(cpus)):
            what = f"cpus-per-rank={cpus} is not a number of cores"
            raise OptionError(format_message(what, instead="--engine-option cpus-per-rank=4"))
        return cls(
            {key: value for key, value in values.items() if key in OF_SBATCH},
            int(cpus) if cpus else None,
            values.get("interface", ""),
            values.get("modules", ""),
            values.get("python", sys.executable),
        )
