"""Outputs of blocks that have not run yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from nbmgpu.errors import StrategyError, format_message


class DeferredTensor(Tensor):
    """An output of a block that runs when the output is used by anything but the next block.

    Attributes:
        can_run: class attribute; False after a failure, when other ranks may have exited.
        producer: runs the block, and returns this output.
        reference: which output it is; see ``call.Reference``.
        segment: the segment whose call returns it.
    """

    can_run: ClassVar[bool] = True

    producer: Callable[[], Tensor]
    reference: Any
    segment: Any

    @staticmethod
    def make(segment: Any, reference: Any, producer: Callable[[], Tensor]) -> DeferredTensor:
        """Return an output of a call in ``segment``.

        It requires a gradient, so that autograd attaches a function to what is made of it, and
        ``check`` finds that.
        """
        deferred: DeferredTensor = Tensor._make_wrapper_subclass(
            DeferredTensor, (0,), requires_grad=segment.records_gradients
        )
        deferred.segment, deferred.reference = segment, reference
        deferred.producer = producer
        return deferred

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the block, and then ``func`` with its output."""
        args, kwargs = tree_map(value_of, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Refuse code that bypasses ``__torch_function__``, whose gradients would be lost.

        Raises:
            StrategyError: always.
        """
        raise in_function()

    def get(self) -> Tensor:
        """Run the block, and return this output.

        Raises:
            StrategyError: autograd has taken this object for the output, or a rank has failed.
        """
        if not DeferredTensor.can_run:
            raise StrategyError("The layer of this output has not run when the cell failed.")
        self.check()
        return self.producer()

    def check(self) -> None:
        """Refuse an output of a ``torch.autograd.Function``, such as a reentrant checkpoint."""
        with torch._C.DisableTorchFunctionSubclass():
            if self.grad_fn is not None:
                raise in_function()

    __hash__ = Tensor.__hash__


def value_of(value: Any) -> Any:
    """Return the tensor of an output that is deferred, and any other value unchanged."""
    return value.get() if isinstance(value, DeferredTensor) else value


def with_values(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the forward pass of a module outside of all layers; a ``ForwardWrapper``.

    It may pass its arguments to a ``torch.autograd.Function``.
    """
    args, kwargs = tree_map(value_of, (args, kwargs))
    return call(*args, **kwargs)


def in_function() -> StrategyError:
    """Return the error for an output that autograd handles before its block has run."""
    return StrategyError(
        format_message(
            "Under pp, the output of a layer is passed to or returned by a "
            "torch.autograd.Function, such as a reentrant checkpoint, between two layers",
            "Such a function may be inside of a layer, or after the last one",
            "use_reentrant=False for a checkpoint, or %%mgpu --strategy fsdp",
        )
    )
