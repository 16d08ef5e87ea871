"""Opens a bundle in another kernel than the one that has sent it, to restore results there."""

from __future__ import annotations

from typing import Any

from .address_space import MappedRegion
from .bundle import Bundle, load_bundle
from .memory_blocks import CPU, Block, BlockTable


class _ReopenedTable(BlockTable):
    """The blocks of a bundle in the order of the file, at their addresses in this process."""

    def __init__(self, regions: list[MappedRegion]) -> None:
        super().__init__()
        self._in_order = [_block(number, region) for number, region in enumerate(regions)]

    @property
    def blocks(self) -> list[Block]:
        return self._in_order


def _block(number: int, region: MappedRegion) -> Block:
    device, low, high = region.span()
    owners = region.storages() or [region.raw]
    return Block(f"{device} {number}", device, low, high, {id(owner): owner for owner in owners})


def reopen_bundle(path: str, owner: str, namespace: dict[str, Any]) -> Bundle:
    """Load what a bundle has, as it was sent; return it as the kernel that has sent it had it.

    Args:
        path: a complete bundle in a file, which ranks do not rewrite.
        owner: the id of the run.
        namespace: where its names are bound; functions that it has use this namespace.

    Raises:
        SerializationError: a value cannot be unpickled here.
        ModuleNotFoundError: a module that the notebook had imported is not installed here.
    """
    received = load_bundle(path, namespace, CPU, owner)
    return Bundle(
        nbytes=0,
        stream=memoryview(b""),
        table=_ReopenedTable(received.memory.regions),
        buffers=[],
        sizes=dict.fromkeys(received.names, 0),
        originals=received.objects,
        namespace=namespace,
        values={name: namespace[name] for name in received.names},
        header=received.header,
    )
