"""Plain copies of values, without ties to the notebook's objects.

This is how ranks other than 0 report what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import container
from .blocks import CPU
from .codec import Memory, Packer, Unpacker, block_table, loading, read_block_table


def write_copies(path: str, values: Mapping[str, Any], home: dict[str, Any]) -> None:
    """Write ``values`` to ``path``; those that cannot be pickled are left out.

    Functions whose globals are ``home`` will have the reader's namespace.
    """
    kept = {name: value for name, value in values.items() if _pickles(value, home)}
    packer = Packer(home)
    packer.dump(kept)
    blocks = packer.blocks.blocks
    data = [block.bytes() for block in blocks]
    container.write(path, packer.file.getvalue(), block_table(blocks), data)


def _pickles(value: Any, home: dict[str, Any]) -> bool:
    try:
        Packer(home).dump(value)
    except Exception:
        return False
    return True


def read_copies(path: str, home: dict[str, Any]) -> dict[str, Any]:
    """Read what ``write_copies`` wrote; CUDA tensors arrive in CPU memory.

    Raises:
        ValueError: nothing was written.
    """
    box = container.read(path)
    memory = Memory(box.blocks, read_block_table(box.table), CPU)
    with loading(memory, home):
        values: dict[str, Any] = Unpacker(box.stream).load()
    return values
