"""Which part of each parameter a rank holds in DeepSpeed's flat partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .initialization import inference_mode_disabled

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Slice:
    """Elements ``start`` to ``start + count`` of a flattened parameter, on this rank.

    They lie in partition ``partition``, from element ``at`` on.
    """

    partition: int
    at: int
    start: int
    count: int

    def of(self, flat: Tensor) -> Tensor:
        """Return the slice's elements of ``flat``, a tensor like the partition; a view."""
        return flat.narrow(0, self.at, self.count)

    def cut(self, whole: Tensor) -> Tensor:
        """Return the slice's elements of a tensor shaped like the parameter."""
        return whole.reshape(-1).narrow(0, self.start, self.count)


class Layout:
    """Where everything lies in the optimizer that an engine has made."""

    def __init__(self, optimizer: Any, stage: int, parameters: list[nn.Parameter]) -> None:
        """Read the layout of ``parameters``, those that the engine updates."""
        self.optimizer = optimizer
        self.stage = stage
        self.parameters = parameters
        self.shapes = {id(p): getattr(p, "ds_shape", p.shape) for p in parameters}
        read = self._of_stage_3 if stage == 3 else self._of_stage_2
        self.slices: dict[int, Slice | None] = {id(p): read(p) for p in parameters}

    @property
    def masters(self) -> list[Tensor]:
        """The partitions that the optimizer updates, in full precision."""
        name = "fp32_partitioned_groups_flat" if self.stage == 3 else None
        found: list[Tensor] = getattr(self.optimizer, name or "single_partition_of_fp32_groups")
        return found

    def models(self) -> list[Tensor]:
        """Return the same partitions as the model computes with them."""
        optimizer = self.optimizer
        if self.stage == 3:
            return list(optimizer.fp16_partitioned_groups_flat)
        rank = dist.get_rank()
        return [parts[rank] for parts in optimizer.parallel_partitioned_bit16_groups]

    def _of_stage_2(self, parameter: Any) -> Slice | None:
        mapping = parameter._hp_mapping
        if mapping is None:
            return None
        ours, whole = mapping.hp_fragment_address, mapping.lp_fragment_address
        return Slice(mapping.param_group_index, ours.start, whole.start, ours.numel)

    def _of_stage_3(self, parameter: Any) -> Slice | None:
        optimizer = self.optimizer
        number, at, room = optimizer.grad_position[optimizer.get_param_id(parameter)]
        start = room * dist.get_rank()
        count = min(room, parameter.ds_numel - start)
        return Slice(number, at, start, count) if count > 0 else None

    def gradients(self) -> list[Tensor]:
        """Return, for each partition, the averaged gradients of the last backward pass, flat.

        Those of parameters that the pass did not reach may be anything.
        """
        if self._offloaded():
            return [master.grad for master in self.masters]  # type: ignore[misc]
        found = self.optimizer.averaged_gradients
        return [
            torch.cat([part.reshape(-1) for part in found[i]]) for i in range(len(self.masters))
        ]

    def place(self, gradients: list[Tensor]) -> None:
        """Give the optimizer the gradients to step with."""
        for number, (master, flat) in enumerate(zip(self.masters, gradients, strict=True)):
            if self._offloaded():
                assert master.grad is not None
                master.grad.copy_(flat)
            else:
                self.optimizer.averaged_gradients[number] = [flat]

    def _offloaded(self) -> bool:
        name = "offload_optimizer" if self.stage == 3 else "cpu_offload"
        return bool(getattr(self.optimizer, name))

    def join(self, parameter: nn.Parameter, part: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Return the whole of which this rank has ``part``; collective.

        The result lies on the device that the ranks' collectives use.
        """
        device = self.models()[0].device
        with inference_mode_disabled():
            whole = torch.zeros(self.shapes[id(parameter)], dtype=dtype, device=device)
            place = self.slices[id(parameter)]
            if place is not None and part is not None:
                place.cut(whole).copy_(part.reshape(-1))
            dist.all_reduce(whole)
        return whole
