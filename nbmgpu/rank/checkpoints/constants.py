"""Variables of the notebook that a cell only reads: checkpoints leave them out.

What the notebook has under such a name holds for a resumed cell, too: ``EPOCHS = 20`` in an earlier
cell lets it train for longer, and data need not be written again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch

IMMUTABLE = (str, bytes, int, float, complex, type(None))


class Constants:
    """The values that cannot have changed, or have not, since the cell has begun."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        """Note the values in ``namespace``."""
        self._values = {
            name: (value, version)
            for name, value in namespace.items()
            if (version := _version(value)) is not None
        }

    def drop_from(self, variables: MutableMapping[str, Any]) -> None:
        """Remove the variables that are bound to what they were bound to, and have not changed."""
        for name, (value, version) in self._values.items():
            if variables.get(name, self) is value and _version(value) == version:
                del variables[name]


def _version(value: Any) -> int | None:
    """Return a number that changes with ``value``; None if there is none.

    Tensors count their changes in place.
    """
    if isinstance(value, IMMUTABLE):
        return 0
    if type(value) is torch.Tensor and not value.is_inference():
        return int(value._version)
    return None
