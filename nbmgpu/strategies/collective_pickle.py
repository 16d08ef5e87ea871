"""Saving sharded objects: all ranks pickle the same object, so that its shards can be gathered."""

from __future__ import annotations

import pickle
from typing import Any

from torch import Tensor


class CollectivePickle(pickle.Pickler):
    """Traverses an object as ``torch.save`` does on rank 0, and discards the output.

    Sharded objects gather their parts when they are pickled.  That is collective, so the other
    ranks pickle the same object with this class.
    """

    def __init__(self) -> None:
        """Create the pickler, with the protocol of ``torch.save``."""
        super().__init__(self, protocol=2)

    def write(self, data: bytes) -> int:
        """Discard ``data``."""
        return len(data)

    def persistent_id(self, obj: Any) -> str | None:
        """Skip all tensors."""
        return "tensor" if isinstance(obj, Tensor) else None
