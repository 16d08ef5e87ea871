"""``python -m nbmgpu.engines.local.torchrun``: torchrun of one machine, without a store on a port.

Torchrun's agents meet in a ``TCPStore``, which listens on all interfaces and asks nobody for a
password.  With one machine there is one agent, and its store can stay in its memory.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.run import main as torchrun

BACKEND = "nbmgpu"


class OneMachine(RendezvousHandler):
    """The rendezvous of an agent that is the only one."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        """Take the endpoint of ``parameters`` for ``MASTER_ADDR`` and ``MASTER_PORT``."""
        self._run_id = parameters.run_id
        self._address = parse_rendezvous_endpoint(parameters.endpoint, default_port=0)
        self._store = HashStore()
        self._store.set_timeout(timedelta(minutes=30))

    def get_backend(self) -> str:
        """Return the name of the backend."""
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the agent's store, its rank 0, and 1 agent."""
        return RendezvousInfo(self._store, 0, 1, RendezvousStoreInfo(*self._address))

    def is_closed(self) -> bool:
        """Return whether no agent may join."""
        return False

    def set_closed(self) -> None:
        """Do nothing: there is no other agent."""

    def num_nodes_waiting(self) -> int:
        """Return the number of agents that wait for the next round."""
        return 0

    def get_run_id(self) -> str:
        """Return the id of the run."""
        return self._run_id

    def shutdown(self) -> bool:
        """Do nothing: nothing was started."""
        return True


def main() -> None:
    """Run torchrun with the arguments of this process."""
    rendezvous_handler_registry.register(BACKEND, OneMachine)
    torchrun([f"--rdzv-backend={BACKEND}", *sys.argv[1:]])


if __name__ == "__main__":
    main()
