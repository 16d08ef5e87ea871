"""Steps of the cell's optimizers as steps of DeepSpeed's engine."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from .engine_wrapper import EngineWrapper


class DelegatingOptimizer(torch.optim.Optimizer):
    """The optimizer that DeepSpeed steps; it delegates to the cell's optimizers."""

    def __init__(self, delegate: OptimizerStep, groups: list[dict[str, Any]]) -> None:
        """Hold ``groups``, without registering as an optimizer of the cell."""
        # Optimizer.__init__ is not called: patches would register this optimizer as the cell's.
        self.delegate = delegate
        self.defaults = {}
        self.state = collections.defaultdict(dict)
        self.param_groups = groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step the flat partitions that DeepSpeed has put into the groups."""
        for group in self.param_groups:
            for flat in group["params"]:
                self.delegate.step_partition(flat)


class OptimizerStep:
    """Steps an optimizer of the cell on this rank's slices of its parameters."""

    def __init__(self, wrapper: EngineWrapper) -> None:
        """Step the optimizers of ``wrapper``."""
        self.wrapper = wrapper
        self._running: tuple[int, Callable[[], Any]] | None = None
        self._result: Any = None

    def step(self, optimizer: Optimizer, original_step: Callable[[], Any]) -> Any:
        """Step through the engine, which calls ``original_step`` for each partition; collective."""
        wrapper = self.wrapper
        gradients, states = wrapper.gradients, wrapper.states
        index = next(i for i, o in enumerate(wrapper.trained.optimizers) if o is optimizer)
        gradients.write_back()
        wrapper.weights.write_back()
        states.partition(index, optimizer)
        states.record_order(index, optimizer, gradients.present)
        with wrapper.engine.running():
            scale = float(wrapper.engine.optimizer.loss_scale)
            wrapper.layout.set_gradients(
                gradients.flat if scale == 1 else [g * scale for g in gradients.flat]
            )
            self._running, self._result = (index, original_step), None
            try:
                wrapper.engine.deepspeed.step()
            finally:
                self._running = None
            wrapper.backward_pass.clear_gradients()
        return self._result

    def step_partition(self, flat: Tensor) -> None:
        """Step the slices in one flat partition with the optimizer whose step is running."""
        assert self._running is not None
        partitions = self.wrapper.layout.fp32_partitions
        number = next(i for i, master in enumerate(partitions) if master is flat)
        index, original_step = self._running
        groups = self.wrapper.trained.optimizers[index].param_groups
        chosen = [self._in_partition(group["params"], number, flat) for group in groups]
        with self._swapped_parameters(index, chosen):
            self._result = original_step()
        for local in (local for members in chosen for local in members):
            if id(local) not in self.wrapper.originals.by_parameter:
                local.grad = None

    def _in_partition(self, parameters: list[Any], number: int, flat: Tensor) -> list[Any]:
        """Return the local parameters, with gradients, of ``parameters`` in a partition."""
        assert flat.grad is not None
        wrapper = self.wrapper
        slices = wrapper.layout.slices
        found = []
        for parameter in parameters:
            own_slice = slices.get(id(parameter))
            if id(parameter) not in slices:
                if number == 0:  # frozen; one device steps it if it still has a gradient
                    found.append(parameter)
            elif own_slice is not None and own_slice.partition == number:
                local = wrapper.states.local_parameters[id(parameter)]
                present = id(parameter) in wrapper.gradients.present
                local.grad = own_slice.of_partition(flat.grad) if present else None
                found.append(local)
        return found

    @contextlib.contextmanager
    def _swapped_parameters(self, index: int, chosen: list[list[Any]]) -> Iterator[None]:
        """Replace an optimizer's parameters by ``chosen`` local ones, and its state by theirs."""
        optimizer: Any = self.wrapper.trained.optimizers[index]
        states = self.wrapper.states.by_optimizer
        groups, state = optimizer.param_groups, optimizer.state
        originals = [group["params"] for group in groups]
        optimizer.state = states[index]
        for group, members in zip(groups, chosen, strict=True):
            group["params"] = members
        try:
            yield
        finally:
            states[index] = optimizer.state
            optimizer.state = state
            for group, parameters in zip(groups, originals, strict=True):
                group["params"] = parameters
