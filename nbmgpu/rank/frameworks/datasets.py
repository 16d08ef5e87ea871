"""Patches of datasets and huggingface_hub: rank 0 downloads and caches, the others reuse it.

All ranks run the cell, so all would download and map the same data.  Rank 0 makes each call
first; the other ranks then make the same call and find its result in the cache.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from nbmgpu.patches import PatchStack, is_declared
from nbmgpu.rank.files import writes
from nbmgpu.rank.session import TrainingSession
from nbmgpu.rank.store.broadcast import wait_for_rank_0

LOADING = ("load_dataset", "load_dataset_builder")
CACHING = ("map", "filter", "shuffle", "sort", "select", "train_test_split", "flatten_indices",
           "cast", "cast_column", "class_encode_column")  # fmt: skip
READING = ("from_csv", "from_json", "from_parquet", "from_text", "from_generator", "from_sql")
WRITING = ("save_to_disk", "push_to_hub", "to_csv", "to_json", "to_parquet", "to_sql")
COMPLETE = ("Dataset", "DatasetDict", "load_dataset")
"""Names that datasets has once it is fully imported, and that a folder datasets/ does not have."""
DOWNLOADING = ("hf_hub_download", "snapshot_download")


def install(session: TrainingSession) -> None:
    """Let rank 0 make calls that leave files first; not where the cell distributes by itself."""
    if not session.rank_info.shards_data:
        return
    order = Rank0First(session.rank_info.rank)
    datasets = sys.modules.get("datasets")
    if all(hasattr(datasets, name) for name in COMPLETE):
        for name in LOADING:
            _wrap_function("datasets", datasets, name, order.rank_0_first)
        for kind in ("Dataset", "DatasetDict"):
            for name in (*CACHING, *READING):
                _wrap_method(datasets, kind, name, order.rank_0_first)
            for name in WRITING:
                _wrap_method(datasets, kind, name, order.rank_0_only)
    if hasattr(hub := sys.modules.get("huggingface_hub"), "__version__"):
        for name in DOWNLOADING:
            _wrap_function("huggingface_hub", hub, name, order.rank_0_first)


class Rank0First:
    """Orders calls that all ranks make in the same sequence: rank 0 before the others."""

    def __init__(self, rank: int) -> None:
        """Order the calls of ``rank``."""
        self.rank = rank
        self.inside = False

    def rank_0_first(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Let rank 0 make a call before the others do, which then make it even if it failed."""

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return original(*args, **kwargs)
            self.inside = True
            try:
                if self.rank:
                    wait_for_rank_0("cached")
                with writes.unpatched():
                    return original(*args, **kwargs)
            finally:
                self.inside = False
                if self.rank == 0:
                    wait_for_rank_0("cached")

        wrapped.nbmgpu = True  # type: ignore[attr-defined]
        return wrapped

    def rank_0_only(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Let rank 0 write, and the others wait until it has."""

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self.rank:
                wait_for_rank_0("written")
                return None
            try:
                return original(*args, **kwargs)
            finally:
                wait_for_rank_0("written")

        wrapped.nbmgpu = True  # type: ignore[attr-defined]
        return wrapped


def _wrap_method(datasets: Any, kind: str, name: str, make: Callable[..., Any]) -> None:
    """Replace a method that a class of datasets itself defines by ``make(method)``."""
    original = vars(getattr(datasets, kind)).get(name)
    target = f"datasets.{kind}.{name}"
    if hasattr(original, "nbmgpu") or not is_declared(target):
        return
    if isinstance(original, staticmethod | classmethod):
        PatchStack().replace(target, type(original)(make(original.__func__)))
    else:
        PatchStack().wrap(target, make)


def _wrap_function(package: str, module: Any, name: str, make: Callable[..., Any]) -> None:
    """Bind every name in the package, or transformers, that refers to a function to its wrapper."""
    original = getattr(module, name, None)
    if hasattr(original, "nbmgpu"):
        return
    PatchStack().replace_in(
        f"{package}.{name}",
        original and make(original),
        _modules_of(package, "transformers"),
        any_name=True,
    )


def _modules_of(*packages: str) -> Iterator[Any]:
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in packages and module is not None:
            yield module
