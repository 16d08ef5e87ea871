"""Makes entries of the patch table: one for each of several names of one module or class."""

from __future__ import annotations

from functools import partial
from typing import Any

from nbmgpu.patches.target import Kind, Library, PatchTarget


def entries(
    kind: Kind, library: Library, owner: str, names: str, why: str, **more: Any
) -> tuple[PatchTarget, ...]:
    """Return an entry for each of ``names``, which spaces separate, of ``owner``."""
    return tuple(
        PatchTarget(f"{owner}.{name}", why, library, kind, **more) for name in names.split()
    )


patched = partial(entries, Kind.PATCHED)
added = partial(entries, Kind.ADDED)
private = partial(entries, Kind.PRIVATE)
