"""Frees memory of the notebook's devices while ranks use them; its bytes are in the bundle.

A notebook that has called ``model.cuda()`` holds the model on the GPU of rank 0, which needs the
same room.  A storage that is resized to nothing keeps its identity: tensors, views and optimizers
that refer to it have their values again once it is resized back and filled, at another address.
FSDP2 frees its parameters in the same way (``torch.distributed.fsdp``).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbmgpu.errors import LaunchError, format_message
from nbmgpu.formatting import format_bytes

from .memory_blocks import CPU, Block, untyped_bytes

WAIT = 10.0
"""Seconds to wait for the memory, which ranks may free only when they have ended."""


@dataclass(frozen=True)
class FreedStorage:
    """A storage without memory, and what it had in it.

    Attributes:
        block: the block of the bundle.
        storage: a ``torch.UntypedStorage``.
        raw: its bytes, mapped from the bundle.
    """

    block: Block
    storage: Any
    raw: memoryview

    def fill(self) -> None:
        """Allocate the memory again, and copy the bytes into it.

        Raises:
            torch.OutOfMemoryError: the device has not enough.
        """
        import torch

        self.storage.resize_(self.raw.nbytes)
        untyped_bytes(self.storage).copy_(torch.frombuffer(self.raw, dtype=torch.uint8))
        self.block.moved = self.storage.data_ptr() - self.block.low


class FreedMemory:
    """The storages of a bundle that are without memory."""

    def __init__(self, blocks: Sequence[Block], raws: Sequence[memoryview]) -> None:
        """Free the memory of ``blocks`` on devices; ``raws`` are their bytes, mapped."""
        self._storages: list[FreedStorage] = []
        for block, raw in zip(blocks, raws, strict=True):
            if (storage := freeable(block)) is not None:
                self._storages.append(FreedStorage(block, storage, raw))
        for each in self._storages:
            each.storage.resize_(0)
        if self._storages:
            _return_to_driver()

    def restore(self) -> None:
        """Let all storages have their bytes again; a second call does nothing.

        Raises:
            LaunchError: a device has no memory for them.  They can be restored later.
        """
        import torch

        deadline = time.monotonic() + WAIT
        while self._storages:
            try:
                self._storages[-1].fill()
            except torch.OutOfMemoryError:
                if time.monotonic() < deadline:
                    time.sleep(0.1)
                    _return_to_driver()
                    continue
                waiting.append(self)
                missing = format_bytes(sum(each.raw.nbytes for each in self._storages))
                what = f"{missing} of the notebook's tensors are not on their GPU again: it is full"
                kept = "Their values are kept in host memory until there is room"
                instead = "any %%mgpu cell, which brings them back first, once its memory is free"
                raise LaunchError(format_message(what, kept, instead)) from None
            self._storages.pop()


waiting: list[FreedMemory] = []
"""What could not be restored yet."""


def restore_waiting() -> None:
    """Restore what could not be restored after an earlier run.

    Raises:
        LaunchError: there is still no memory for it.
    """
    while waiting:
        waiting.pop().restore()


def freeable(block: Block) -> Any | None:
    """Return the storage of a block on a device if its memory can be freed, else None.

    The block must cover all of it: only bytes of tensors that the cell reads are in the bundle.
    """
    if block.device == CPU or not block.owners:
        return None
    storage = next(iter(block.owners.values()))
    whole = block.address == storage.data_ptr() and block.nbytes == storage.nbytes()
    return storage if whole and storage.resizable() else None


def _return_to_driver() -> None:
    """Let other processes have the memory that the caching allocator of torch holds."""
    import torch

    gc.collect()
    if (kind := torch.accelerator.current_accelerator()) is not None:
        getattr(torch.get_device_module(kind), "empty_cache", lambda: None)()
