"""Gradients and optimizer states of an engine, partitioned over the ranks.

Between steps they behave like ``.grad`` and ``optimizer.state`` on one device: gradients accumulate
until the cell clears them, and states belong to parameters, not to DeepSpeed's flat partitions.
"""

from __future__ import annotations

import collections
import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from .parameter_proxies import PartitionedOptimizerState

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from .original_modules import OriginalModules
    from .partition_layout import PartitionLayout
    from .zero_engine import ZeroEngine


class PartitionedGradients:
    """The gradients of an engine's parameters.

    Attributes:
        flat: this rank's gradients in fp32, one flat tensor per partition.
        present: ids of the parameters whose ``.grad`` is not None.
        exposes_local: whether ``.grad`` is this rank's slice, not the full gradient.
    """

    def __init__(
        self, engine: ZeroEngine, layout: PartitionLayout, originals: OriginalModules
    ) -> None:
        """Start without gradients.

        Args:
            engine: the engine that averages the gradients.
            layout: their partitions.
            originals: the cell's modules and parameters.
        """
        self.engine = engine
        self.layout = layout
        self.originals = originals
        self.exposes_local = False
        self.flat = [torch.zeros_like(m, requires_grad=False) for m in self.layout.fp32_partitions]
        self.present: set[int] = set()
        self._full: dict[int, tuple[nn.Parameter, Tensor]] = {}

    def local(self, parameter: nn.Parameter) -> Tensor | None:
        """Return a view of this rank's slice of a gradient; None if it has no element here."""
        own_slice = self.layout.slices[id(parameter)]
        return None if own_slice is None else own_slice.of_partition(self.flat[own_slice.partition])

    def full(self, parameter: nn.Parameter) -> Tensor:
        """Return the full gradient in fp32, or as the cell has it; collective unless gathered."""
        if id(parameter) in self._full:
            return self._full[id(parameter)][1]
        return self.layout.gather(parameter, self.local(parameter), torch.float32)

    def accumulate(
        self, parameters: Iterable[nn.Parameter], sources: list[Tensor], scale: float
    ) -> None:
        """Add ``sources / scale`` to the gradients of ``parameters``.

        Args:
            parameters: those that have got a gradient.
            sources: their gradients, one flat tensor per partition.
            scale: the loss scale.
        """
        self.write_back()
        self._full.clear()
        for parameter in parameters:
            local, own_slice = self.local(parameter), self.layout.slices[id(parameter)]
            if local is not None and own_slice is not None:
                if id(parameter) not in self.present:
                    local.zero_()
                source = own_slice.of_partition(sources[own_slice.partition])
                local.add_(source, alpha=1 / scale)
            self.present.add(id(parameter))

    def get(self, parameter: nn.Parameter) -> Tensor | None:
        """Return the full gradient for the cell; collective unless gathered already."""
        if id(parameter) not in self.present:
            return None
        if self.exposes_local:
            self._full.pop(id(parameter), None)
            local = self.local(parameter)
            return torch.zeros(0) if local is None else local
        if id(parameter) not in self._full:
            with self.engine.running():
                full = self.full(parameter).to(self.originals.dtype_of(parameter))
            self._full[id(parameter)] = (parameter, full)
        return self._full[id(parameter)][1]

    def set(self, parameter: nn.Parameter, value: Tensor | None) -> None:
        """Set the full gradient, which is the same on all ranks."""
        self._full.pop(id(parameter), None)
        if value is None:
            self.present.discard(id(parameter))
            return
        self.present.add(id(parameter))
        self._full[id(parameter)] = (parameter, value)

    def write_back(self) -> None:
        """Copy gradients that the cell has read or set back into the partitions.

        The cell may have changed them, and not every in-place operation increments a version.
        """
        for key, (parameter, full) in self._full.items():
            local, own_slice = self.local(parameter), self.layout.slices[key]
            if local is not None and own_slice is not None:
                local.copy_(own_slice.of_parameter(full.detach()))

    def norm_power(self, parameters: Iterable[nn.Parameter], norm_type: float) -> Tensor:
        """Return the sum of |g| ** norm_type over ``parameters``, for inf the maximum; collective.

        The result has shape (), on the device that collectives use.
        """
        self.write_back()
        device = self.layout.model_partitions()[0].device
        chosen = [p for p in parameters if id(p) in self.present]
        locals_ = [local for p in chosen if (local := self.local(p)) is not None]
        norms = [torch.linalg.vector_norm(local, norm_type).to(device) for local in locals_]
        total = torch.stack(norms) if norms else torch.zeros(1, device=device)
        if norm_type == float("inf"):
            total = total.max()
            dist.all_reduce(total, dist.ReduceOp.MAX)
        else:
            total = total.pow(norm_type).sum()
            dist.all_reduce(total)
        return total

    def multiply(self, parameters: Iterable[nn.Parameter], factor: Tensor) -> None:
        """Multiply the gradients of ``parameters`` by ``factor``."""
        self._full.clear()
        for parameter in parameters:
            local = self.local(parameter)
            if local is not None and id(parameter) in self.present:
                local.mul_(factor.to(local.device))


class PartitionedStates:
    """The states of a unit's optimizers on this rank.

    Optimizers step local parameters: views of DeepSpeed's flat partitions, one per parameter.  So
    each keeps its own step counter, and a parameter without gradient is not stepped.

    Attributes:
        local_parameters: the view for each parameter with elements on this rank, by ``id``.
        by_optimizer: for each optimizer its state, keyed by local parameter.
    """

    def __init__(
        self, engine: ZeroEngine, layout: PartitionLayout, optimizers: list[Optimizer]
    ) -> None:
        """Partition the states that ``optimizers`` have, by ``layout``."""
        self.engine = engine
        self.layout = layout
        self.local_parameters: dict[int, nn.Parameter] = {}
        for parameter in self.layout.parameters:
            own_slice = self.layout.slices[id(parameter)]
            if own_slice is not None:
                flat = self.layout.fp32_partitions[own_slice.partition].detach()
                self.local_parameters[id(parameter)] = nn.Parameter(own_slice.of_partition(flat))
        self.by_optimizer: list[dict[Any, Any]] = []
        self._order: list[dict[int, None]] = [{} for _ in optimizers]
        self._originals: list[dict[Any, Any]] = [{} for _ in optimizers]
        for index, optimizer in enumerate(optimizers):
            self.by_optimizer.append(collections.defaultdict(dict))
            self.partition(index, optimizer)

    def partition(self, index: int, optimizer: Optimizer) -> None:
        """Partition ``optimizer.state``, unless it is partitioned already."""
        full = optimizer.state
        if isinstance(full, PartitionedOptimizerState) and not full.is_gathered:
            return
        local: dict[Any, Any] = collections.defaultdict(dict)
        for key, state in dict(full).items():
            if id(key) not in self.layout.slices:
                local[key] = state
            elif id(key) in self.local_parameters:
                local[self.local_parameters[id(key)]] = self._local_state(key, state)
        self.by_optimizer[index] = local
        self._order[index] = dict.fromkeys(map(id, dict(full)))
        # On a GPU the original tensors would take the memory that partitioning saves.
        self._originals[index] = {id(k): v for k, v in dict(full).items() if k.device.type == "cpu"}
        optimizer.state = PartitionedOptimizerState(self, index)

    def _local_state(self, parameter: Tensor, state: dict[str, Any]) -> dict[str, Any]:
        own_slice = self.layout.slices[id(parameter)]
        local_parameter = self.local_parameters[id(parameter)]
        assert own_slice is not None
        shape = self.layout.shapes[id(parameter)]
        local: dict[str, Any] = {}
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == shape:
                is_counter = value.dim() == 0 and name == "step"
                detached = value.detach()
                part = detached if is_counter else own_slice.of_parameter(detached)
                device = value.device if is_counter else local_parameter.device
                local[name] = part.to(device, copy=True)
            else:
                local[name] = copy.deepcopy(value)
        return local

    def record_order(self, index: int, optimizer: Optimizer, present: set[int]) -> None:
        """Record the order in which one device would create the states of ``optimizer``."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in present:
                    self._order[index].setdefault(id(parameter))

    def gather_in_place(self, index: int) -> dict[Any, dict[str, Any]]:
        """Return the full state in the tensors that it had before, which others may share."""
        full = self.gather(index)
        for parameter, state in full.items():
            before = self._originals[index].get(id(parameter), {})
            for name, value in state.items():
                original = before.get(name)
                if not isinstance(original, torch.Tensor) or not isinstance(value, torch.Tensor):
                    continue
                if (original.shape, original.dtype) == (value.shape, value.dtype):
                    state[name] = original.detach().copy_(value)
        return full

    def gather(self, index: int) -> dict[Any, dict[str, Any]]:
        """Return the full state of an optimizer, keyed by full parameter; collective."""
        local = self.by_optimizer[index]
        parameters = list(self.layout.parameters)
        own_kinds = {}
        for number, parameter in enumerate(parameters):
            key = self.local_parameters.get(id(parameter))
            if key is not None and key in local:
                own_kinds[number] = {n: _dtype_or_value(v, key) for n, v in local[key].items()}
        all_kinds: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(all_kinds, own_kinds)
        full: dict[Any, dict[str, Any]] = {}
        with self.engine.running():
            for number, parameter in enumerate(parameters):
                kinds = next((k[number] for k in all_kinds if number in k), None)
                if kinds is None:
                    continue
                key = self.local_parameters.get(id(parameter))
                state = local.get(key, {}) if key is not None else {}
                full[parameter] = {
                    name: self.layout.gather(parameter, state.get(name), value)
                    if isinstance(value, torch.dtype) else value
                    for name, value in kinds.items()
                }  # fmt: skip
        local_keys = {id(key) for key in self.local_parameters.values()}
        full |= {key: state for key, state in local.items() if id(key) not in local_keys}
        rank_of = {key: i for i, key in enumerate(self._order[index])}
        return dict(sorted(full.items(), key=lambda item: rank_of.get(id(item[0]), len(rank_of))))


def _dtype_or_value(value: Any, local_parameter: nn.Parameter) -> Any:
    """Return the dtype of a tensor with an element per element of the parameter, else ``value``."""
    is_partitioned = isinstance(value, torch.Tensor) and value.shape == local_parameter.shape
    return value.dtype if is_partitioned else value
