"""Tensors between the ranks of a pipeline.

A rank must know shape and dtype of a tensor to receive it.  They may differ in each pass, so a
header goes before the tensors of a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from nbmgpu.strategies.point_to_point import Sending, isend, recv

MAX_DIMS = 12
"""Most dimensions of a tensor in a message."""

HEADERS = torch.device("cpu")
"""Where headers are: the host reads them, and would wait for a GPU to have them."""

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip


@dataclass(frozen=True)
class TensorMeta:
    """What a rank must know of a tensor to receive it.

    Attributes:
        shape, dtype: of the tensor.
        requires_grad: whether its gradient is sent back.
    """

    shape: torch.Size
    dtype: torch.dtype
    requires_grad: bool

    @staticmethod
    def of(tensor: Tensor) -> TensorMeta:
        """Describe ``tensor``."""
        return TensorMeta(tensor.shape, tensor.dtype, tensor.requires_grad)

    def encode(self) -> list[int]:
        """Return it as ``2 + 1 + MAX_DIMS`` numbers."""
        padding = [0] * (MAX_DIMS - len(self.shape))
        return [
            DTYPES.index(self.dtype), int(self.requires_grad), len(self.shape), *self.shape,
            *padding,
        ]  # fmt: skip

    @staticmethod
    def decode(numbers: list[int]) -> TensorMeta:
        """Return what ``encode`` has encoded."""
        dtype, requires_grad, dims, *sizes = numbers
        return TensorMeta(torch.Size(sizes[:dims]), DTYPES[dtype], bool(requires_grad))


class Transport:
    """Sends tensors to neighbours, without waiting for them."""

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        """Use ``group``, with tensors on ``device``."""
        self.group = group
        self.device = device
        self._sent: list[Sending] = []

    def send(self, tensors: Sequence[Tensor | None], dst: int) -> None:
        """Send tensors to a rank of the group; some may be None."""
        if tensors:
            self._send(self._header(tensors), dst)
        for tensor in tensors:
            if tensor is not None:
                self._send(tensor.detach().contiguous(), dst)

    def _send(self, tensor: Tensor, dst: int) -> None:
        self._sent.append(isend(tensor, dst, self.group))

    def receive(self, number: int, src: int) -> list[Tensor | None]:
        """Receive ``number`` tensors or Nones, which require gradients as they did there."""
        if not number:
            return []
        header = torch.empty((number, 3 + MAX_DIMS), dtype=torch.int64, device=HEADERS)
        recv(header, src, self.group)
        tensors: list[Tensor | None] = []
        for meta in self._read(header):
            tensor = self._empty(meta)
            if tensor is not None:
                recv(tensor, src, self.group)
                tensor.requires_grad_(meta is not None and meta.requires_grad)
            tensors.append(tensor)
        return tensors

    def wait(self) -> None:
        """Wait until all tensors are sent."""
        for sending in self._sent:
            sending.work.wait()
        self._sent.clear()

    def broadcast_tensors(
        self, tensors: Sequence[Tensor], number: int, src: int
    ) -> list[tuple[Tensor, TensorMeta]]:
        """Return on all ranks the ``number`` tensors of rank ``src``, detached, and their metas."""
        header = torch.empty((number, 3 + MAX_DIMS), dtype=torch.int64, device=HEADERS)
        if self.group.rank() == src:
            header.copy_(self._header(tensors))
        self.broadcast(header, src)
        found = []
        for index, meta in enumerate(self._read(header)):
            assert meta is not None
            if self.group.rank() == src:
                tensor = tensors[index].detach().contiguous()
            else:
                tensor = torch.empty(meta.shape, dtype=meta.dtype, device=self.device)
            self.broadcast(tensor, src)
            found.append((tensor, meta))
        return found

    def broadcast_object(self, make: Callable[[], Any], src: int) -> Any:
        """Return on all ranks of the group what ``make`` returns on rank ``src``."""
        found: list[Any] = [make() if self.group.rank() == src else None]
        dist.broadcast_object_list(found, group=self.group, group_src=src)
        return found[0]

    def broadcast(self, tensor: Tensor, src: int) -> None:
        """Copy a contiguous ``tensor`` of rank ``src`` to the others of the group."""
        dist.broadcast(tensor, group=self.group, group_src=src)

    def _header(self, tensors: Sequence[Tensor | None]) -> Tensor:
        missing = [-1] * (3 + MAX_DIMS)
        rows = [missing if t is None else TensorMeta.of(t).encode() for t in tensors]
        return torch.tensor(rows, device=HEADERS)

    def _read(self, header: Tensor) -> list[TensorMeta | None]:
        return [None if row[0] < 0 else TensorMeta.decode(row) for row in header.tolist()]

    def _empty(self, meta: TensorMeta | None) -> Tensor | None:
        if meta is None:
            return None
        return torch.empty(meta.shape, dtype=meta.dtype, device=self.device)
