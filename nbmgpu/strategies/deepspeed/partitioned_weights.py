"""The weights of an engine: fp32 master weights, partitioned over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from .original_modules import OriginalModules
    from .parameter_gathering import ParameterGathering
    from .partition_layout import PartitionLayout
    from .zero_engine import ZeroEngine


class PartitionedWeights:
    """Copies weights between DeepSpeed's partitions and the cell's parameters."""

    def __init__(
        self,
        engine: ZeroEngine,
        layout: PartitionLayout,
        originals: OriginalModules,
        gathering: ParameterGathering | None,
    ) -> None:
        """Initialize the weights of ``engine``.

        Args:
            engine: the engine that updates them.
            layout: their partitions.
            originals: the cell's modules and parameters.
            gathering: gathers parameters of stage 3; None at other stages.
        """
        self._engine = engine
        self._layout = layout
        self._originals = originals
        self._gathering = gathering

    def write_back(self) -> None:
        """Copy weights that the cell has changed into the fp32 master weights."""
        if self._gathering is not None:
            self._gathering.partition()
        else:
            self._copy_rebound_data()
        layout = self._layout
        with self._engine.running(), torch.no_grad():
            partitions = zip(layout.fp32_partitions, layout.model_partitions(), strict=True)
            for master, model in partitions:
                if master.data_ptr() == model.data_ptr():
                    continue
                if master.dtype == model.dtype:
                    master.copy_(model)
                else:  # masters whose half-precision copy is unchanged keep their precision
                    differs = master.to(model.dtype).to(model.device) != model
                    changed = differs.to(master.device)
                    master.copy_(torch.where(changed, model.to(master), master))

    def _copy_rebound_data(self) -> None:
        """Copy parameters whose ``.data`` the cell has replaced into DeepSpeed's flat buffer."""
        optimizer = self._engine.optimizer
        for number, flat in enumerate(optimizer.bit16_groups_flat):
            members = optimizer.round_robin_bit16_groups[number]
            offsets = optimizer.round_robin_bit16_offsets[number]
            for parameter, offset in zip(members, offsets, strict=True):
                shape = self._layout.shapes[id(parameter)]
                view = flat.narrow(0, offset, shape.numel()).view(shape)
                if parameter.data.data_ptr() != view.data_ptr():
                    view.copy_(parameter.data)
                    parameter.data = view

    def gather(self) -> dict[int, Tensor]:
        """Return the full weights, by ``id``: fp32 master weights where there are any; collective.

        The engine must be running.
        """
        layout, originals = self._layout, self._originals
        weights = {}
        for parameter in layout.parameters:
            own_slice = layout.slices[id(parameter)]
            local = None
            if own_slice is not None:
                local = own_slice.of_partition(layout.fp32_partitions[own_slice.partition])
            full = layout.gather(parameter, local, torch.float32)
            weights[id(parameter)] = full.to(originals.dtype_of(parameter))
        if self._gathering is not None:
            self._gathering.gather()
            for parameter in originals.parameters:
                if parameter.dtype == originals.dtype_of(parameter):
                    weights.setdefault(id(parameter), parameter.data.clone())
            for parameter in originals.parameters:
                parameter.ds_active_sub_modules.clear()  # type: ignore[attr-defined]
        return weights
