"""Calls of blocks that run together: each rank runs those of its own blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from nbmgpu.errors import StrategyError, format_message

from .call import Call, Input, Reference
from .deferred import DeferredTensor

if TYPE_CHECKING:
    from .block import PipelineBlock

Producer = Callable[["Segment", list[Reference]], list[Tensor]]
"""Runs a segment for some of its outputs; collective."""


class Segment:
    """Calls of consecutive blocks of one stack, in one mode of autograd and autocast.

    Attributes:
        inputs: the tensors from outside, without duplicates.
        calls: the calls.
        modes: of autograd and autocast.
        has_run: whether it has run for some of its outputs.
    """

    def __init__(self, device_type: str, produce: Producer) -> None:
        """Start without calls, in the current modes.

        Args:
            device_type: of autocast.
            produce: runs a segment for some of its outputs.
        """
        self._produce = produce
        self.inputs: list[Tensor] = []
        self.calls: list[Call] = []
        self._device_type = device_type
        self.modes = current_modes(device_type)
        self._values: dict[Reference, Tensor] = {}
        self._tried: dict[Reference, Tensor] = {}
        self._versions: dict[int, tuple[Tensor, int]] = {}
        self.has_run = False

    @property
    def batch_size(self) -> int:
        """Number of samples: the size of the first dimension of the first input."""
        first = self.inputs[0] if self.inputs else None
        return 1 if first is None or not first.dim() else first.shape[0]

    @property
    def records_gradients(self) -> bool:
        """Whether its blocks run with gradients."""
        return self.modes[0]

    def can_continue(self, block: PipelineBlock, leaves: list[Any]) -> bool:
        """Whether a call of ``block`` with these arguments continues the segment."""
        if self.has_run or not self.calls:
            return False
        last = self.calls[-1].block
        return (
            last.stack is block.stack
            and last.index + 1 == block.index
            and self.modes == current_modes(self._device_type)
            and any(isinstance(x, DeferredTensor) and x.segment is self for x in leaves)
        )

    def argument(self, leaf: Any) -> Any:
        """Return what stands for a leaf of the arguments of a call."""
        if isinstance(leaf, DeferredTensor):
            return leaf.reference
        if not isinstance(leaf, Tensor):
            return leaf
        for index, known in enumerate(self.inputs):
            if known is leaf:
                return Input(index)
        self.inputs.append(leaf)
        self._record_versions([leaf])
        return Input(len(self.inputs) - 1)

    def add(self, call: Call, tried: list[Any]) -> None:
        """Add a call, with the outputs of a trial of it, if there was one."""
        self.calls.append(call)
        self._record_versions(call.block.local_parameters())
        index = len(self.calls) - 1
        self._tried.update(
            {Reference(index, i): x for i, x in enumerate(tried) if isinstance(x, Tensor)}
        )

    def _record_versions(self, tensors: Sequence[Tensor]) -> None:
        """Record the values of inputs or parameters when a block is called."""
        for tensor in tensors:
            if not tensor.is_inference():
                self._versions.setdefault(id(tensor), (tensor, tensor._version))

    def tried(self, leaf: DeferredTensor) -> Tensor:
        """Return the output that a trial had in place of ``leaf``."""
        return self._tried[leaf.reference]

    def has_tried(self, leaf: DeferredTensor) -> bool:
        """Whether the call that returns ``leaf`` was tried."""
        return leaf.reference in self._tried

    def outputs(self) -> Any:
        """Return the output of the last call, deferred."""
        references, info = self._outputs(len(self.calls) - 1), self.calls[-1].info
        leaves = [None if r is None else self._defer(r) for r in references]
        return tree_unflatten(leaves, info.spec)

    def run_outputs(self) -> Any:
        """Run the segment; return the output of the last call."""
        references, info = self._outputs(len(self.calls) - 1), self.calls[-1].info
        wanted = [r for r in references if r is not None]
        if wanted:
            self._run(wanted)
        leaves = [None if r is None else self._values[r] for r in references]
        return tree_unflatten(leaves, info.spec)

    def _outputs(self, index: int) -> list[Reference | None]:
        """Return the tensors that a call returns, and None for other leaves of its output."""
        tensors = enumerate(self.calls[index].info.tensors)
        return [Reference(index, i) if is_tensor else None for i, is_tensor in tensors]

    def _defer(self, reference: Reference) -> DeferredTensor:
        def producer() -> Tensor:
            if reference not in self._values:
                if self.has_run:
                    self._run_again(reference)
                else:
                    self._run([reference])
            return self._values[reference]

        return DeferredTensor.make(self, reference, producer)

    def _run(self, wanted: list[Reference]) -> None:
        """Run all calls for the ``wanted`` outputs, and others that were used before."""
        before = [
            reference
            for index, call in enumerate(self.calls)
            for reference in self._outputs(index)
            if reference is not None and reference.output in call.block.used_outputs
        ]
        self.has_run = True
        self._produce_values(list(dict.fromkeys([*before, *wanted])))

    def _run_again(self, wanted: Reference) -> None:
        """Run all calls once more, as an output between them is used after the last one.

        From then on the first run returns this output.

        Raises:
            StrategyError: calls change the blocks or draw, so a second one is not like the first.
        """
        block = self.calls[wanted.call].block
        block.used_outputs.add(wanted.output)
        if any(call.info.changes or call.info.draws for call in self.calls):
            raise _second_run(block.name)
        every = [r for i in range(len(self.calls)) for r in self._outputs(i) if r is not None]
        self._produce_values(every)

    def _produce_values(self, finals: list[Reference]) -> None:
        if any(tensor._version != version for tensor, version in self._versions.values()):
            raise _changed_since(self.calls[finals[0].call].block.name)
        with in_modes(self.modes, self._device_type):
            tensors = self._produce(self, finals)
        for reference, tensor in zip(finals, tensors, strict=True):
            self._values.setdefault(reference, tensor)


def _changed_since(name: str) -> StrategyError:
    return StrategyError(
        format_message(
            f"Under pp, the output of layer {name} is used for the first time after its input or "
            "its parameters have changed, such as by optimizer.step()",
            "A layer runs when its output is used, or the last layer is called",
            "use the output before the step",
        )
    )


def _second_run(name: str) -> StrategyError:
    return StrategyError(
        format_message(
            f"Under pp, the output of layer {name} is used after later layers have run, and would "
            "need a second run, which draws other numbers or updates running statistics again",
            "Outputs between such layers are used before the last one is called",
            "%%mgpu --strategy tp",
        )
    )


Modes = tuple[bool, bool, torch.dtype]


def current_modes(device_type: str) -> Modes:
    """Return whether gradients are recorded, whether autocast is on, and its dtype."""
    enabled = torch.is_autocast_enabled(device_type)
    return torch.is_grad_enabled(), enabled, torch.get_autocast_dtype(device_type)


@contextmanager
def in_modes(modes: Modes, device_type: str) -> Iterator[None]:
    """Run the body in ``modes``."""
    grad, enabled, dtype = modes
    with torch.set_grad_enabled(grad), torch.autocast(device_type, dtype, enabled):
        yield
