"""Checks on the host of what kernels of a GPU assert: an assertion ends the use of the GPU.

Trials call modules with numbers that they may not take: an index that is computed from them may be
out of range, and a probability negative.  On the CPU, that is an exception.  On a GPU, every later
operation of the process fails, too (``CUDA error: device-side assert triggered``).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_ATEN = torch.ops.aten

INDEXED = frozenset(
    getattr(_ATEN, name)
    for name in (
        "embedding", "_embedding_bag", "_embedding_bag_forward_only", "gather", "index",
        "index_add", "index_add_", "index_copy", "index_copy_", "index_fill", "index_fill_",
        "index_put", "index_put_", "_index_put_impl_", "index_reduce", "index_reduce_",
        "index_select", "masked_scatter", "masked_scatter_", "multi_margin_loss",
        "nll_loss_forward", "nll_loss2d_forward", "put", "put_", "scatter", "scatter_",
        "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "take",
    )
)  # fmt: skip
"""Operators that check indices, and no other numbers."""

PROBABILITIES = frozenset(
    getattr(_ATEN, name)
    for name in (
        "_assert_async", "bernoulli", "bernoulli_", "binary_cross_entropy", "multinomial",
        "repeat_interleave",
    )
)  # fmt: skip
"""Operators that check other numbers: probabilities, how often to repeat, conditions."""


class _HostChecks(TorchDispatchMode):
    """Runs such operators on the host first, which raises what the CPU raises."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator."""
        kwargs = kwargs or {}
        packet = getattr(func, "overloadpacket", None)  # flex_attention has none
        if packet in INDEXED or packet in PROBABILITIES:
            changes = func._schema.is_mutable
            convert = _with_indices(changes) if packet in INDEXED else _to_host
            others = {k: v for k, v in kwargs.items() if k not in ("generator", "out")}
            on_host, named = tree_map(convert, (args, others))
            with torch.random.fork_rng(devices=[]):
                func(*on_host, **named)
        return func(*args, **kwargs)


def host_checks(leaves: Iterable[Any]) -> AbstractContextManager[object]:
    """Return a context in which no kernel asserts: it raises an exception instead.

    Args:
        leaves: arguments of the call in the body; nothing is done if none is on a GPU.
    """
    on_gpu = any(isinstance(x, Tensor) and x.device.type != "cpu" for x in leaves)
    return _HostChecks() if on_gpu else nullcontext()  # type: ignore[no-untyped-call]


def _to_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def _with_indices(writable: bool) -> Any:
    """Return a function that copies indices and masks, and makes zeros for other tensors."""

    def convert(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return _to_host(value)
        zeros = torch.zeros((), dtype=value.dtype).expand(value.shape)  # without memory
        return zeros.clone() if writable else zeros

    return convert
