"""Numbers of tensors that a call reads: they may decide what it computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

READS = frozenset({
    Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__bool__, Tensor.__float__, Tensor.__int__,
    Tensor.__index__, Tensor.__array__, Tensor.equal, Tensor.allclose, torch.equal, torch.allclose,
    torch.is_nonzero, Tensor.is_nonzero,
})  # fmt: skip
"""Functions that return numbers of tensors to Python, where they may decide what is computed."""


class TooManyReadsError(Exception):
    """A call reads so many more numbers than before that it may not end."""


class ReadRecorder(TorchFunctionMode):
    """Records the numbers that a call reads from tensors.

    Attributes:
        found: the numbers.
    """

    def __init__(self, before: ReadRecorder | None = None) -> None:
        """Start without numbers.

        Args:
            before: those of a call with other arguments: ten times as many are too many.
        """
        super().__init__()
        self.found: list[Any] = []
        self._most = None if before is None else 10 * len(before.found) + 100

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, and record what it reads.

        Raises:
            TooManyReadsError: those are more than the most.
        """
        result = func(*args, **(kwargs or {}))
        if func in READS:
            self.found += [getattr(x, "tolist", lambda x=x: x)() for x in tree_leaves(result)]
            if self._most is not None and len(self.found) > self._most:
                raise TooManyReadsError("it loops as long as numbers decide, which may be always")
        return result
