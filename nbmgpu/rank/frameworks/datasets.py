"""datasets and huggingface_hub in a rank: what they download and cache is made once.

All ranks run the cell, so all would read, map and download the same.  Rank 0 goes first;
the others then do the same call and find its result in the cache.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from nbmgpu.rank.files import writes
from nbmgpu.rank.session import Session
from nbmgpu.rank.store.broadcast import after_rank_0

LOADING = ("load_dataset", "load_dataset_builder")
CACHING = ("map", "filter", "shuffle", "sort", "select", "train_test_split", "flatten_indices",
           "cast", "cast_column", "class_encode_column")  # fmt: skip
READING = ("from_csv", "from_json", "from_parquet", "from_text", "from_generator", "from_sql")
WRITING = ("save_to_disk", "push_to_hub", "to_csv", "to_json", "to_parquet", "to_sql")
DOWNLOADING = ("hf_hub_download", "snapshot_download")


def tap(session: Session) -> None:
    """Let rank 0 go first in what leaves files; nothing where ranks distribute by themselves."""
    if not session.distributes:
        return
    turn = Turn(session.rank)
    if (datasets := sys.modules.get("datasets")) is not None and hasattr(datasets, "Dataset"):
        for name in LOADING:
            _everywhere("datasets", getattr(datasets, name, None), turn.first)
        for kind in (datasets.Dataset, datasets.DatasetDict):
            for name in CACHING:
                _replace(kind, name, turn.first)
            for name in READING:
                _replace(kind, name, turn.first)
            for name in WRITING:
                _replace(kind, name, turn.alone)
    if (hub := sys.modules.get("huggingface_hub")) is not None:
        for name in DOWNLOADING:
            _everywhere("huggingface_hub", getattr(hub, name, None), turn.first)


class Turn:
    """Rank 0 before the others, in calls that all ranks make in the same order."""

    def __init__(self, rank: int) -> None:
        """Be on ``rank``."""
        self.rank = rank
        self.inside = False

    def first(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Let rank 0 do a call before the others do; after it has failed, they do it as well."""

        @functools.wraps(original)
        def done_first(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return original(*args, **kwargs)
            self.inside = True
            try:
                if self.rank:
                    after_rank_0("cached")
                with writes.apart():
                    return original(*args, **kwargs)
            finally:
                self.inside = False
                if self.rank == 0:
                    after_rank_0("cached")

        done_first.nbmgpu = True  # type: ignore[attr-defined]
        return done_first

    def alone(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Let rank 0 write, and the others wait until it has."""

        @functools.wraps(original)
        def done_alone(*args: Any, **kwargs: Any) -> Any:
            if self.rank:
                after_rank_0("written")
                return None
            try:
                return original(*args, **kwargs)
            finally:
                after_rank_0("written")

        done_alone.nbmgpu = True  # type: ignore[attr-defined]
        return done_alone


def _replace(kind: Any, name: str, make: Callable[..., Any]) -> None:
    """Put ``make(method)`` in the place of a method that ``kind`` itself defines."""
    original = vars(kind).get(name)
    if original is None or hasattr(original, "nbmgpu"):
        return
    if isinstance(original, staticmethod | classmethod):
        setattr(kind, name, type(original)(make(original.__func__)))
    else:
        setattr(kind, name, make(original))


def _everywhere(package: str, original: Any, make: Callable[..., Any]) -> None:
    """Bind every name of the package's modules that means ``original`` to ``make(original)``."""
    if original is None or hasattr(original, "nbmgpu"):
        return
    first = make(original)
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in (package, "transformers") and module is not None:
            for attribute, value in list(vars(module).items()):
                if value is original:
                    setattr(module, attribute, first)
