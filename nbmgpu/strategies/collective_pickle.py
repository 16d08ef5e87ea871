"""Pickling together: what is spread over ranks is gathered by all, while rank 0 writes it."""

from __future__ import annotations

import pickle
from typing import Any

from torch import Tensor


class Attendance(pickle.Pickler):
    """Goes through an object as ``torch.save`` does, and keeps nothing."""

    def __init__(self) -> None:
        """Write to nowhere; ``torch.save`` has this protocol too."""
        super().__init__(self, protocol=2)

    def write(self, data: bytes) -> int:
        """Drop ``data``."""
        return len(data)

    def persistent_id(self, obj: Any) -> str | None:
        """Leave all tensors out."""
        return "tensor" if isinstance(obj, Tensor) else None
