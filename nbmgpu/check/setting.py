"""Where checks run: on several GPUs, on one that all ranks share, or on CPU ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbmgpu.devices.probe import Machine
from nbmgpu.devices.requirements import missing_requirement, refused_device
from nbmgpu.environment.accelerator import CUDA
from nbmgpu.formatting import format_count
from nbmgpu.strategies import profile_of

from .check import CheckSkipped

CPU_RANKS = 4
"""The most CPU ranks, and ranks that share a GPU, of a check."""


@dataclass(frozen=True)
class Setting:
    """The devices that checks use.

    Attributes:
        gpus: number of GPUs, or of devices of another accelerator; 0 for CPU ranks.
        kind: the type of these devices in torch.
    """

    gpus: int
    kind: str = CUDA

    @classmethod
    def of(cls, machine: Machine, cpu: bool = False) -> Setting:
        """Return the setting of a machine; with ``cpu``, as if it had no GPU."""
        return cls(len(machine.gpus) if machine.cuda and not cpu else 0, machine.kind)

    @property
    def device(self) -> str:
        """The type of the device of tensors in the cells: ``cpu``, or that of the accelerator."""
        return self.kind if self.gpus else "cpu"

    @property
    def on_cuda(self) -> bool:
        """Whether ranks have CUDA's devices."""
        return self.device == CUDA

    def require_gpu(self) -> None:
        """Raise ``CheckSkipped`` without an accelerator."""
        if not self.gpus:
            raise CheckSkipped("needs a GPU")

    def require_cuda(self) -> None:
        """Raise ``CheckSkipped`` without CUDA, for what other accelerators may not have."""
        self.require_gpu()
        if not self.on_cuda:
            raise CheckSkipped(f"needs CUDA, and these devices are {self.kind}")

    @property
    def shared(self) -> bool:
        """Whether all ranks share one GPU, and communicate by gloo instead of NCCL."""
        return self.gpus == 1

    @property
    def most_ranks(self) -> int:
        """The most ranks of a check."""
        return self.gpus if self.gpus > 1 else CPU_RANKS

    def require_strategy(self, name: str) -> None:
        """Raise ``CheckSkipped`` if a strategy cannot run here."""
        profile = profile_of(name)
        if (missing := missing_requirement(profile)) is not None:
            raise CheckSkipped(f"needs {missing.needed}")
        if why := refused_device(profile, self.device):
            raise CheckSkipped(why)

    def options(self, ranks: int) -> dict[str, Any]:
        """Return the options of ``nbmgpu.run`` for this number of ranks.

        Raises:
            CheckSkipped: the ranks would share a device that cannot be shared.
        """
        if not self.gpus:
            return {"gpus": ranks, "cpu": True}
        if self.shared and ranks > 1 and not self.on_cuda:
            raise CheckSkipped(f"needs {ranks} devices: ranks cannot share one of {self.kind}")
        return {"gpus": (0,) * ranks if self.shared and ranks > 1 else ranks}

    @property
    def proves(self) -> str:
        """What checks in this setting prove, and what they do not."""
        if not self.gpus:
            return "CPU ranks with gloo: nothing here says how a GPU behaves."
        if not self.on_cuda:
            devices = format_count(self.gpus, f"{self.kind} device")
            return f"{devices}, one per rank: nothing here is about CUDA."
        if self.shared:
            return (
                "One GPU: several ranks share it and communicate by gloo. This proves the numbers "
                "and the handling of GPU tensors, not NCCL between GPUs, nor the speed."
            )
        return f"{self.gpus} GPUs, one per rank, with NCCL."
