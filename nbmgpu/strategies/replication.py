"""Keeps the copies of a model equal, apart from gradients: initial values, running statistics."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from . import collectives
from .scalars import Scalar

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from .base import Unit


class RunningStatistics:
    """The buffers of a unit that a forward pass changes, such as those of batch normalization."""

    def __init__(self, unit: Unit, group: ProcessGroup | None = None) -> None:
        """Watch the floating point buffers of ``unit``, and average them over ``group``."""
        self._group = group
        self.buffers = list(unit.buffers())
        self.versions = [b._version for b in self.buffers]
        found = (m for root in unit.modules for m in root.modules())
        self._norms = [m for m in found if isinstance(m, nn.modules.batchnorm._NormBase)]

    def average(self, weight: Scalar, total: Scalar = 1.0) -> None:
        """Average the changed buffers, so that evaluations agree; collective if any changed.

        Args:
            weight: this rank's weight.
            total: sum of the weights in the group.
        """
        if not self.buffers:
            return
        normalized = self._of_batch_norm()
        changed = [
            buffer
            for buffer, version in zip(self.buffers, self.versions, strict=True)
            if buffer._version > version or id(buffer) in normalized
        ]
        if not changed:
            return
        double = any(b.dtype == torch.float64 for b in changed)
        wide = torch.float64 if double else torch.float32  # half precision has too few digits
        flat = torch.cat([b.reshape(-1).to(wide) for b in changed]) * weight
        collectives.all_reduce(flat, self._group).wait()
        for buffer, part in zip(changed, flat.split([b.numel() for b in changed]), strict=True):
            # Another graph of this step may have saved statistics, and does not read them.
            target = buffer.data if id(buffer) in normalized else buffer
            target.copy_((part / total).view(buffer.shape))
        self.versions = [b._version for b in self.buffers]

    def _of_batch_norm(self) -> set[int]:
        """Return ids of buffers of batch normalization, which change without a new version."""
        return {id(b) for m in self._norms if m.training for b in m.buffers(recurse=False)}


def digest(tensors: list[Tensor]) -> str:
    """Return a digest of the bits of ``tensors``, empty if there are none; one read per device."""
    checksums = b"".join(bit_checksums(tensors))
    return hashlib.blake2b(checksums, digest_size=8).hexdigest() if checksums else ""


def bit_checksums(tensors: list[Tensor]) -> list[bytes]:
    """Return a checksum of 8 bytes for the bits of each tensor; one read per device.

    It is empty for tensors without elements, quantized or sparse ones, and other subclasses.
    """
    groups: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
        if plain and tensor.numel() and not tensor.is_meta and not tensor.is_quantized:
            groups.setdefault(tensor.device, []).append(index)
    checksums = [b""] * len(tensors)
    for indices in groups.values():
        sums = torch.stack([_sum_of_bits(tensors[index].detach()) for index in indices])
        for index, value in zip(indices, sums.tolist(), strict=True):
            checksums[index] = value.to_bytes(8, "little", signed=True)
    return checksums


def _as_real(tensor: Tensor) -> Tensor:
    """Return real and imaginary parts of a complex ``tensor`` in a last dimension of size 2."""
    plain = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(plain) if plain.is_complex() else plain


def _sum_of_bits(tensor: Tensor) -> Tensor:
    """Return the sum of all bits, read as integers of 8 bytes; independent of the order."""
    flat = _as_real(tensor).reshape(-1).contiguous()
    per_integer = 8 // flat.element_size()
    if flat.storage_offset() % per_integer:
        flat = flat.clone()
    whole = flat.numel() // per_integer * per_integer
    rest = flat[whole:].view(torch.uint8).sum(dtype=torch.int64)
    return flat[:whole].view(torch.int64).sum() + rest


def broadcast_unless_equal(tensors: list[Tensor], group: ProcessGroup | None = None) -> None:
    """Broadcast the values of the first rank of ``group`` unless all are equal; collective.

    Objects that came from the notebook are equal already, and comparing a checksum is much cheaper
    than sending them.
    """
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(tensor.detach())
    for members in by_device.values():
        checksums = [_as_real(m).sum(dtype=torch.float64) for m in members if m.numel()]
        if not checksums:
            continue
        mine = torch.nan_to_num(torch.stack(checksums))
        low, high = mine.clone(), mine.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN, group)
        dist.all_reduce(high, dist.ReduceOp.MAX, group)
        if not torch.equal(low, high):
            for member in members:
                dist.broadcast(member, group=group, group_src=0)
