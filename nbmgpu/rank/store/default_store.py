"""The store that all ranks share, with the keys of the current run."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

_prefix = ""


def default_store() -> Any:
    """Return the store; keys of one run of held ranks are not those of another."""
    store: Any = dist.distributed_c10d._get_default_store()
    make_view: Any = dist.PrefixStore  # type: ignore[attr-defined]
    return make_view(_prefix, store) if _prefix else store


def use_prefix(prefix: str) -> None:
    """Begin with a store without keys, the same on all ranks that use ``prefix``."""
    global _prefix
    _prefix = prefix
