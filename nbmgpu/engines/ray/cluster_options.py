"""``--engine-option`` for Ray."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nbmgpu.engines.multi_node.option_values import cpus_per_rank, require_known_keys
from nbmgpu.errors import OptionError, format_message

from .refusal import address_problem

KEYS = ("accelerator-type", "address", "cpus-per-rank", "interface", "memory", "python")

SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([MGT])i?B?", re.IGNORECASE)


@dataclass(frozen=True)
class ClusterOptions:
    """Which cluster a run uses, and what it asks it for.

    Attributes:
        address: ``host:port``, ``ray://host:port`` or ``auto``; empty for ``RAY_ADDRESS``, else for
            the cluster of this machine, else for a new one on this machine.
        accelerator_type: of the GPUs, such as ``A100``; empty for any.
        cpus_per_rank: cores of each rank; None for 1.
        interface: network interface for gloo and NCCL; empty for the one that leads to the head.
        memory: bytes on each node; 0 for any.
        python: the Python interpreter on the nodes; empty for that of Ray's workers.
    """

    address: str = ""
    accelerator_type: str = ""
    cpus_per_rank: int | None = None
    interface: str = ""
    memory: int = 0
    python: str = ""

    @classmethod
    def of(cls, values: Mapping[str, str]) -> ClusterOptions:
        """Return the options of ``--engine-option``.

        Raises:
            OptionError: a key is unknown, or a value cannot be.
        """
        require_known_keys("Ray", values, KEYS, "address")
        what, allowed, instead = address_problem(values.get("address", ""))
        if what:
            raise OptionError(format_message(what, allowed, f"--engine-option {instead}"))
        memory = values.get("memory", "")
        size = SIZE.fullmatch(memory)
        if memory and size is None:
            what = f"memory={memory} is not a size"
            raise OptionError(format_message(what, instead="--engine-option memory=64G"))
        return cls(
            values.get("address", ""),
            values.get("accelerator-type", ""),
            cpus_per_rank(values),
            values.get("interface", ""),
            int(float(size[1]) * 2 ** {"M": 20, "G": 30, "T": 40}[size[2].upper()]) if size else 0,
            values.get("python", ""),
        )
