"""Where each parameter is in DeepSpeed's flat partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .initialization import inference_mode_disabled

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class PartitionSlice:
    """The elements of one parameter that this rank updates.

    Attributes:
        partition: index of the flat partition, which is that of DeepSpeed's parameter group.
        offset: index of the first element in the flat partition.
        start: index of the first element in the flattened parameter.
        count: number of elements.
    """

    partition: int
    offset: int
    start: int
    count: int

    def of_partition(self, flat: Tensor) -> Tensor:
        """Return a view of the slice's elements of ``flat``, which is shaped like a partition."""
        return flat.narrow(0, self.offset, self.count)

    def of_parameter(self, full: Tensor) -> Tensor:
        """Return the slice's elements, flat, of a tensor that is shaped like the parameter."""
        return full.reshape(-1).narrow(0, self.start, self.count)


class PartitionLayout:
    """The partitions of a ZeRO optimizer and the slices of parameters in them.

    Attributes:
        parameters: those that the engine updates.
        shapes: their full shapes, by ``id``.
        slices: the slice of each parameter on this rank, by ``id``; None if it has no element here.
    """

    def __init__(self, optimizer: Any, stage: int, parameters: list[nn.Parameter]) -> None:
        """Read the layout from DeepSpeed's ``optimizer``."""
        self.optimizer = optimizer
        self.stage = stage
        self.parameters = parameters
        self.shapes = {id(p): getattr(p, "ds_shape", p.shape) for p in parameters}
        slice_of = self._slice_of_stage_3 if stage == 3 else self._slice_of_stage_1_or_2
        self.slices: dict[int, PartitionSlice | None] = {id(p): slice_of(p) for p in parameters}

    @property
    def fp32_partitions(self) -> list[Tensor]:
        """This rank's flat partitions of the fp32 master weights."""
        stage_3 = "fp32_partitioned_groups_flat"
        name = stage_3 if self.stage == 3 else "single_partition_of_fp32_groups"
        partitions: list[Tensor] = getattr(self.optimizer, name)
        return partitions

    def model_partitions(self) -> list[Tensor]:
        """Return the same partitions in the dtype that the model computes with."""
        optimizer = self.optimizer
        if self.stage == 3:
            return list(optimizer.fp16_partitioned_groups_flat)
        rank = dist.get_rank()
        return [parts[rank] for parts in optimizer.parallel_partitioned_bit16_groups]

    def _slice_of_stage_1_or_2(self, parameter: Any) -> PartitionSlice | None:
        mapping = parameter._hp_mapping
        if mapping is None:
            return None
        local, full = mapping.hp_fragment_address, mapping.lp_fragment_address
        return PartitionSlice(mapping.param_group_index, local.start, full.start, local.numel)

    def _slice_of_stage_3(self, parameter: Any) -> PartitionSlice | None:
        optimizer = self.optimizer
        group, offset, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
        start = size * dist.get_rank()
        count = min(size, parameter.ds_numel - start)
        return PartitionSlice(group, offset, start, count) if count > 0 else None

    def averaged_gradients(self) -> list[Tensor]:
        """Return this rank's averaged gradients of the last backward pass, flat per partition.

        Elements of parameters that the pass did not reach are undefined.
        """
        if self._is_offloaded():
            return [master.grad for master in self.fp32_partitions]  # type: ignore[misc]
        found = self.optimizer.averaged_gradients
        return [
            torch.cat([part.reshape(-1) for part in found[i]])
            for i in range(len(self.fp32_partitions))
        ]

    def set_gradients(self, gradients: list[Tensor]) -> None:
        """Set the gradients, flat per partition, that DeepSpeed's optimizer steps with."""
        for index, (master, flat) in enumerate(zip(self.fp32_partitions, gradients, strict=True)):
            if self._is_offloaded():
                assert master.grad is not None
                master.grad.copy_(flat)
            else:
                self.optimizer.averaged_gradients[index] = [flat]

    def _is_offloaded(self) -> bool:
        name = "offload_optimizer" if self.stage == 3 else "cpu_offload"
        return bool(getattr(self.optimizer, name))

    def gather(self, parameter: nn.Parameter, local: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Gather a full tensor from the ranks' slices; this rank's is ``local``; collective.

        The result is shaped like ``parameter``, on the device that collectives use.
        """
        device = self.model_partitions()[0].device
        with inference_mode_disabled():
            full = torch.zeros(self.shapes[id(parameter)], dtype=dtype, device=device)
            own_slice = self.slices[id(parameter)]
            if own_slice is not None and local is not None:
                own_slice.of_parameter(full).copy_(local.reshape(-1))
            dist.all_reduce(full)
        return full


def partition_numel(parameter: Any) -> int:
    """Return how many elements of a parameter of stage 3 this rank stores, without padding."""
    if parameter.ds_persist:  # smaller than stage3_param_persistence_threshold
        return int(parameter.ds_numel)
    size, numel = int(parameter.ds_tensor.ds_numel), int(parameter.ds_numel)
    return max(0, min(size, numel - size * dist.get_rank()))
