"""``--engine-option`` for Slurm."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from nbmgpu.engines.multi_node.option_values import cpus_per_rank, require_known_keys

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
        require_known_keys("Slurm", values, KEYS, "partition")
        return cls(
            {key: value for key, value in values.items() if key in OF_SBATCH},
            cpus_per_rank(values),
            values.get("interface", ""),
            values.get("modules", ""),
            values.get("python", sys.executable),
        )
