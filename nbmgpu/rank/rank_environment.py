"""What an engine passes to a rank: its position among the others, and how to reach them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmgpu.system.shared_memory import SharedMemory


@dataclass(frozen=True)
class RankEnvironment:
    """The environment of one rank.

    Attributes:
        rank: of this process, from 0.
        world_size: number of ranks.
        local_rank, local_world_size: the same among the ranks of this machine.
        node_rank, nodes: number of this machine, and of machines.
        host: name of this machine, with several.
        init_method: rendezvous of ``torch.distributed.init_process_group``: ``tcp://host:port``,
            ``env://`` for ``MASTER_ADDR`` and ``MASTER_PORT``, or ``unix:///path`` for the store
            server of ``nbmgpu.engines.local``, which serves no other user.
        interface: network interface for gloo and NCCL; empty for their own choice.
        parent: pid of the parent process, with which the rank ends; None for an engine that ends
            ranks by other means.
        shared_memory: for collectives on the CPU, if all ranks were forked with it.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int = 0
    nodes: int = 1
    host: str = ""
    init_method: str = "env://"
    interface: str = ""
    parent: int | None = None
    shared_memory: SharedMemory | None = None

    @classmethod
    def from_variables(
        cls,
        variables: Mapping[str, str],
        init_method: str = "env://",
        interface: str = "",
        parent: int | None = None,
    ) -> RankEnvironment:
        """Return the environment that ``variables`` describe: ``RANK`` and others, as torchrun's.

        All ranks are on one machine unless ``LOCAL_RANK`` and related variables are set otherwise.
        """
        rank, world_size = variables["RANK"], variables["WORLD_SIZE"]
        return cls(
            int(rank),
            int(world_size),
            int(variables.get("LOCAL_RANK", rank)),
            int(variables.get("LOCAL_WORLD_SIZE", world_size)),
            int(variables.get("GROUP_RANK", 0)),
            int(variables.get("GROUP_WORLD_SIZE", 1)),
            "",
            init_method,
            interface,
            parent,
        )

    def apply(self) -> None:
        """Set the environment variables of this process."""
        os.environ.update(self.variables())
        if self.interface:
            for library in ("GLOO", "NCCL"):  # also where the notebook has another one
                os.environ[f"{library}_SOCKET_IFNAME"] = self.interface

    def variables(self) -> dict[str, str]:
        """Return the variables that torchrun would set, for cells that read them."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node_rank),
            "GROUP_WORLD_SIZE": str(self.nodes),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "ROLE_NAME": "default",
        }
