"""Variables of the notebook that a cell only reads: checkpoints leave them out.

What the notebook has under such a name holds for a resumed cell, too: ``EPOCHS = 20`` in an earlier
cell lets it train for longer, and data need not be written again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch

from nbmgpu.strategies.replication import bit_checksums

IMMUTABLE = (str, bytes, int, float, complex, type(None))


class Constants:
    """The values that cannot have changed, or have not, since the cell has begun."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        """Note the values in ``namespace``."""
        self._values = {
            name: (value, content)
            for name, value in namespace.items()
            if (content := _content(value)) is not None
        }

    def drop_from(self, variables: MutableMapping[str, Any]) -> None:
        """Remove the variables that are bound to what they were bound to, and have not changed."""
        for name, (value, content) in self._values.items():
            if variables.get(name, self) is value and _content(value) == content:
                del variables[name]


def _content(value: Any) -> Any:
    """Return what changes with ``value``; None if nothing does.

    Tensors count their changes in place, but not those by ``.data`` or of running statistics.
    """
    if isinstance(value, IMMUTABLE):
        return True
    if type(value) is not torch.Tensor or value.is_inference():
        return None
    (checksum,) = bit_checksums([value])
    return (value._version, checksum) if checksum else None
