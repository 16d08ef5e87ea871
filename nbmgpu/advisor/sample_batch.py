"""A batch to rehearse with, from what the user has: a batch, a loader, or its shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmgpu.environment import random_state
from nbmgpu.errors import OptionError, format_message

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

LOOKED_AT = 8
"""Samples of a dataset that are looked at: texts differ in length."""


class NoBatchError(Exception):
    """No batch can be had without changing something; the text says why."""


def shaped(shape: tuple[int, ...]) -> dict[str, Any]:
    """Return a batch of so many samples of so many tokens, as language models take it."""
    import torch

    if len(shape) != 2 or min(shape) < 1:
        what = f"batch={shape!r} is no batch"
        allowed = "A batch is what the loader gives, or (samples, tokens) of a language model"
        raise OptionError(format_message(what, allowed, "batch=(8, 512)"))
    ids = torch.zeros(shape, dtype=torch.long, device="meta")
    return {"input_ids": ids, "labels": ids}


def from_loader(loader: DataLoader[Any]) -> tuple[Any, int]:
    """Return a batch of some samples of the dataset, and how many a batch of the loader has.

    The loader itself is not iterated: that would draw random numbers, start workers and
    use up a stream.  Global random states are put back.

    Raises:
        NoBatchError: the loader has a stream, or its dataset gives no samples.
    """
    from torch.utils.data import IterableDataset

    dataset: Any = getattr(loader, "dataset", None)
    if dataset is None or isinstance(dataset, IterableDataset):
        raise NoBatchError("the loader reads a stream, which looking at would use up")
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if size is None:
        raise NoBatchError("the loader does not say how large its batches are")
    before = random_state.capture()
    try:
        length = len(dataset)
        step = max(1, length // LOOKED_AT)
        places = range(0, length, step)[: min(LOOKED_AT, size)]
        return loader.collate_fn([dataset[place] for place in places]), size
    except Exception as error:
        raise NoBatchError(f"its dataset gives no samples: {error}") from error
    finally:
        random_state.restore(before)
