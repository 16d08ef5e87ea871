"""Names what the notebook holds on accelerators besides what a cell reads, if memory was short."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nbmgpu.formatting import format_bytes

if TYPE_CHECKING:
    from nbmgpu.runs.run import Run
    from nbmgpu.serialization import Bundle

MAX_NAMES = 5
"""Variables that are named, the largest first."""

LEAST = 1 << 20
"""Bytes below which a variable is not worth a mention."""

UNREAD = (
    "The notebook's kernel holds {total} on its accelerator that the cell does not read, and ranks "
    "there lack: {names}. To free it: `del` them, or move them to the CPU (`{first} = "
    "{first}.cpu()`), and run the cell again."
)


def notice_text(run: Run, bundle: Bundle, namespace: Mapping[str, Any]) -> str:
    """Return what the cell has not read of the notebook, if a rank was short of memory, else ""."""
    failure = run.view.failure
    if failure is None or "OutOfMemory" not in failure.type:
        return ""
    read = {id_ for block in bundle.table.blocks for id_ in map(_address, block.owners.values())}
    found = [(size, name) for name, size in unread_bytes(namespace, read).items() if size >= LEAST]
    if not found:
        return ""
    largest = sorted(found, reverse=True)[:MAX_NAMES]
    names = ", ".join(f"`{name}` ({format_bytes(size)})" for size, name in largest)
    total = format_bytes(sum(size for size, _ in found))
    return UNREAD.format(total=total, names=names, first=largest[0][1])


def unread_bytes(namespace: Mapping[str, Any], read: set[int]) -> dict[str, int]:
    """Return the bytes that each variable holds on accelerators; shared memory counts once.

    Args:
        namespace: the notebook's names.
        read: the addresses of storages that do not count.
    """
    seen, sizes = set(read), defaultdict[str, int](int)
    for name, value in namespace.items():
        for tensor in _tensors(value) if not name.startswith("_") else ():
            storage = tensor.untyped_storage()
            if tensor.device.type != "cpu" and _address(storage) not in seen:
                seen.add(_address(storage))
                sizes[name] += storage.nbytes()
    return sizes


def _address(storage: Any) -> int:
    address = getattr(storage, "data_ptr", lambda: 0)()
    return int(address)


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors of a variable: a tensor, model, optimizer, or a collection of these."""
    if "torch" not in sys.modules:
        return
    import torch
    from torch.utils._pytree import tree_leaves

    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.nn.Module):
            parts: Iterable[Any] = [*leaf.parameters(), *leaf.buffers()]
        elif isinstance(leaf, torch.optim.Optimizer):
            parts = tree_leaves(dict(leaf.state))
        else:
            parts = [leaf]
        for part in parts:
            if isinstance(part, torch.Tensor):
                yield part
                if part.grad is not None:
                    yield part.grad
