"""The patch table: one module for each group of libraries, joined here."""

from __future__ import annotations

from nbmgpu.patches.target import PatchTarget

from . import (
    deepspeed,
    hugging_face,
    lightning,
    python,
    torch_fsdp,
    torch_private,
    torch_training,
    tracking,
)

TABLE: dict[str, PatchTarget] = {
    entry.target: entry
    for module in (
        torch_training,
        torch_private,
        torch_fsdp,
        deepspeed,
        lightning,
        hugging_face,
        tracking,
        python,
    )
    for entry in module.ENTRIES
}
"""Every entry by its target."""


def entry_of(target: str) -> PatchTarget:
    """Return the entry of ``target``.

    Raises:
        LookupError: there is none.
    """
    try:
        return TABLE[target]
    except KeyError:
        raise LookupError(f"{target} is not declared in nbmgpu/patches/table") from None


def is_declared(target: str) -> bool:
    """Whether the table has an entry for ``target``."""
    return target in TABLE
