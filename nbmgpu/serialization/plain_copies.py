"""Plain copies of values, without ties to the notebook's objects.

This is how ranks other than 0 report what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import container
from .mapped_memory import Memory, OwnedArea, load_table
from .pickler import Packer
from .placeholders import TolerantUnpacker
from .tensor_views import loading
from .transfer import write_container


def write_copies(path: str, values: Mapping[str, Any], namespace: dict[str, Any]) -> None:
    """Write ``values`` to ``path``; those that cannot be pickled are left out.

    Functions whose globals are ``namespace`` will have the reader's.
    """
    kept = {name: value for name, value in values.items() if _pickles(value, namespace)}
    packer = Packer(namespace, names_travel=False)
    packer.dump(kept)
    write_container(path, packer.file.getbuffer(), packer.blocks, packer.buffers)


def _pickles(value: Any, namespace: dict[str, Any]) -> bool:
    try:
        Packer(namespace, names_travel=False).dump(value)
    except Exception:
        return False
    return True


def read_copies(path: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Read what ``write_copies`` wrote; CUDA tensors arrive in CPU memory.

    Raises:
        ValueError: nothing was written.
    """
    box = container.read(path)
    entries, buffers = load_table(box.table)
    areas = [OwnedArea(raw, entry.low) for entry, raw in zip(entries, box.blocks, strict=True)]
    memory = Memory(entries, areas)
    with loading(memory, namespace):
        values: dict[str, Any] = TolerantUnpacker(box.stream, memory.buffers(buffers)).load()
    return values
