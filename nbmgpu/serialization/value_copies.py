"""Plain copies of values, without references to the notebook's objects.

Ranks other than 0 use them to report the values that they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import container
from .address_space import AddressSpace, OwnedRegion, load_table
from .bundle import write_container
from .pickler import BundlePickler
from .placeholders import TolerantUnpickler
from .tensor_views import load_context


def write_copies(path: str, values: Mapping[str, Any], namespace: dict[str, Any]) -> None:
    """Write ``values`` to ``path``, except for those that cannot be pickled.

    Functions whose globals are ``namespace`` will have the reader's namespace.
    """
    kept = {name: value for name, value in values.items() if _pickles(value, namespace)}
    pickler = BundlePickler(namespace, include_globals=False)
    pickler.dump(kept)
    write_container(path, pickler.file.getbuffer(), pickler.blocks, pickler.buffers)


def _pickles(value: Any, namespace: dict[str, Any]) -> bool:
    try:
        BundlePickler(namespace, include_globals=False).dump(value)
    except Exception:
        return False
    return True


def read_copies(path: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Read what ``write_copies`` wrote; CUDA tensors are loaded into CPU memory.

    Raises:
        ValueError: nothing was written.
    """
    opened = container.read(path)
    entries, buffers = load_table(opened.table)
    regions = [
        OwnedRegion(raw, entry.low) for entry, raw in zip(entries, opened.blocks, strict=True)
    ]
    memory = AddressSpace(entries, regions)
    with load_context(memory, namespace):
        values: dict[str, Any] = TolerantUnpickler(opened.stream, memory.buffers(buffers)).load()
    return values
