"""Tensors between the ranks of a pipeline.

A rank must know shape and dtype of a tensor to receive it.  They follow from the shapes of a
segment's inputs, so they are sent only with the first tensors of such a segment.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .plan import TensorMeta


def meta_of(tensor: Tensor) -> TensorMeta:
    """Return what a rank must know to receive ``tensor``."""
    return TensorMeta(tensor.shape, tensor.dtype, tensor.requires_grad)


class Transport:
    """Sends tensors to neighbours, without waiting for them."""

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        """Use ``group``, with tensors on ``device``."""
        self.group = group
        self.device = device
        self._sent: list[tuple[Any, Tensor]] = []

    def send(self, tensors: Sequence[Tensor], dst: int) -> None:
        """Send tensors to a rank of the group."""
        for tensor in tensors:
            kept = tensor.detach().contiguous()
            self._sent.append((dist.isend(kept, group=self.group, group_dst=dst), kept))

    def receive(self, metas: Sequence[TensorMeta], src: int) -> list[Tensor]:
        """Receive tensors from a rank of the group."""
        tensors = [torch.empty(m.shape, dtype=m.dtype, device=self.device) for m in metas]
        for tensor in tensors:
            dist.recv(tensor, group=self.group, group_src=src)
        return tensors

    def wait(self) -> None:
        """Wait until all tensors are sent."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def send_object(self, obj: Any, dst: int) -> None:
        """Send any object to a rank of the group.

        ``send_object_list`` would wait for that rank, which may be sending to this one.
        """
        data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
        self.send([torch.tensor([len(data)], device=self.device), data.to(self.device)], dst)

    def receive_object(self, src: int) -> Any:
        """Receive an object from a rank of the group."""
        [size] = self.receive([TensorMeta(torch.Size([1]), torch.int64, False)], src)
        [data] = self.receive([TensorMeta(torch.Size([int(size)]), torch.uint8, False)], src)
        return pickle.loads(data.cpu().numpy().tobytes())

    def broadcast_object(self, make: Callable[[], Any], src: int) -> Any:
        """Return on all ranks of the group what ``make`` returns on rank ``src``."""
        found: list[Any] = [make() if self.group.rank() == src else None]
        dist.broadcast_object_list(found, group=self.group, group_src=src)
        return found[0]

    def broadcast(self, tensor: Tensor, src: int) -> None:
        """Copy a contiguous ``tensor`` of rank ``src`` to the others of the group."""
        dist.broadcast(tensor, group=self.group, group_src=src)
