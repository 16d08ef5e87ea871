"""Sends tensors from rank to rank, through the host where the backend needs it.

gloo copies tensors of a GPU to the host for its collectives, but not to send them: there it takes
their address for one of the host (torch 2.11: ``writev: Bad address``, or an abort).  Ranks that
share a GPU communicate by gloo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch.distributed as dist

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup, Work


class Sending(NamedTuple):
    """A tensor on its way.

    Attributes:
        work: ``wait()`` returns when the tensor may be changed.
        buffer: what is read until then.
    """

    work: Work
    buffer: Tensor


def isend(tensor: Tensor, dst: int, group: ProcessGroup | None = None) -> Sending:
    """Start to send a contiguous ``tensor``.

    Args:
        tensor: what to send.
        dst: rank in the group.
        group: None for all ranks.
    """
    buffer = tensor.cpu() if _needs_host(tensor, group) else tensor
    work = dist.isend(buffer, group=group, group_dst=dst)
    assert work is not None  # this rank is in the group
    return Sending(work, buffer)


def recv(tensor: Tensor, src: int, group: ProcessGroup | None = None) -> None:
    """Receive what rank ``src`` of the group sends into a contiguous ``tensor``."""
    if not _needs_host(tensor, group):
        dist.recv(tensor, group=group, group_src=src)
        return
    buffer = tensor.cpu()
    dist.recv(buffer, group=group, group_src=src)
    tensor.copy_(buffer)


def _needs_host(tensor: Tensor, group: ProcessGroup | None) -> bool:
    device = tensor.device.type
    return device != "cpu" and f"{device}:gloo" in dist.get_backend_config(group).split(",")
