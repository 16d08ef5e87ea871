"""Counts the collectives of a rank, and the bytes that it sends.

Counted is the payload: the bytes of the tensors that the rank hands to collectives and to ``send``.
An all-reduce or a reduce-scatter counts the tensor that is reduced, an all-gather the rank's own
part, an all-to-all the whole input, a broadcast or a scatter the tensors of its root, and a receive
nothing.  It is not what passes a wire, which depends on the algorithm: a ring all-reduce over n
ranks sends 2 (n - 1) / n times the payload.

All of Python's communication passes the methods of ``ProcessGroup``: that of strategies, of FSDP2,
of DeepSpeed, and of the cell.  Collectives through shared memory are counted as well.  What C++
code of torch sends by itself is not: the reducer of a ``DistributedDataParallel`` that the cell
makes, and functional collectives, which DTensor uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbmgpu.patches import PatchStack

FIRST = ("allreduce", "allreduce_coalesced", "reduce", "send")
"""Methods whose first argument is sent."""

SECOND = (
    "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "_allgather_base",
    "all_gather_single", "all_gather_single_coalesced", "alltoall", "alltoall_base",
    "all_to_all_single", "gather", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_single", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced",
    "scatter",
)  # fmt: skip
"""Methods whose second argument is sent, after their outputs."""

GROUP = "torch.distributed.ProcessGroup"


class CommunicationCounter:
    """Counts what this process has sent.

    Attributes:
        sent: bytes, since the process began.
        collectives: collectives and sends, since then; coalesced ones are one.
    """

    def __init__(self) -> None:
        """Begin at zero."""
        self.sent = self.collectives = 0

    def count(self, nbytes: int) -> None:
        """Count a collective to which this process hands ``nbytes`` bytes."""
        self.sent += nbytes
        self.collectives += 1

    def install(self) -> None:
        """Count what passes the methods of ``ProcessGroup`` from now on."""
        patches = PatchStack()
        for method in FIRST:
            patches.wrap(f"{GROUP}.{method}", self._counting_first)
        for method in SECOND:
            patches.wrap(f"{GROUP}.{method}", self._counting_second)
        patches.wrap(f"{GROUP}.broadcast", self._counting_root)

    def _counting_first(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self.count(payload(tensors))
            return method(group, tensors, *args, **kwargs)

        return counted

    def _counting_second(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(group: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self.count(payload(inputs))
            return method(group, outputs, inputs, *args, **kwargs)

        return counted

    def _counting_root(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            root = getattr(args[0], "rootRank", args[0]) if args else kwargs.get("root")
            self.count(payload(tensors) if root == group.rank() else 0)
            return method(group, tensors, *args, **kwargs)

        return counted


def payload(tensors: Any) -> int:
    """Return the bytes of a tensor, or of tensors in lists of lists."""
    kind = type(tensors)
    if kind is not list and kind is not tuple:  # faster than to ask for a Tensor
        nbytes: int = tensors.nbytes
        return nbytes
    total = 0
    for each in tensors:
        total += payload(each)
    return total


counter = CommunicationCounter()
"""The counter of this process."""
