"""State dicts whose tensors are mapped from the files of a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map


def copied_state(state: Any) -> Any:
    """Return ``state`` with copies of its tensors, for objects that keep what they load."""
    return tree_map(
        lambda value: value.clone() if isinstance(value, torch.Tensor) else value, state
    )
