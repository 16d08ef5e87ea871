"""Builds an example batch for the fake step from a shape or a DataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmgpu.environment import random_state
from nbmgpu.errors import OptionError, format_message

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

MAX_SAMPLES = 8
"""Maximum number of samples that are read from a dataset: texts differ in length."""


class NoBatchError(Exception):
    """No batch can be read without side effects; the message says why."""


def token_batch(shape: tuple[int, ...]) -> dict[str, Any]:
    """Return a language model batch of the shape ``(samples, tokens)`` on the meta device."""
    import torch

    if len(shape) != 2 or min(shape) < 1:
        what = f"batch={shape!r} is not a batch"
        allowed = "Give a batch of the DataLoader, or (samples, tokens) for a language model"
        raise OptionError(format_message(what, allowed, "batch=(8, 512)"))
    ids = torch.zeros(shape, dtype=torch.long, device="meta")
    return {"input_ids": ids, "labels": ids}


def batch_from_loader(loader: DataLoader[Any]) -> tuple[Any, int]:
    """Collate some samples of the dataset, without iterating the loader.

    Iterating would draw random numbers, start workers and consume a stream.  Global random
    states are restored.

    Returns:
        A batch of at most ``MAX_SAMPLES`` samples, and the batch size of the loader.

    Raises:
        NoBatchError: the loader reads a stream, has no batch size, or its dataset fails.
    """
    from torch.utils.data import IterableDataset

    dataset: Any = getattr(loader, "dataset", None)
    if dataset is None or isinstance(dataset, IterableDataset):
        raise NoBatchError("the loader reads a stream, and reading a sample would consume it")
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if size is None:
        raise NoBatchError("the loader has no batch size")
    try:
        length = len(dataset)
        step = max(1, length // MAX_SAMPLES)
        indices = range(0, length, step)[: min(MAX_SAMPLES, size)]
        with random_state.kept():
            return loader.collate_fn([dataset[index] for index in indices]), size
    except Exception as error:
        raise NoBatchError(f"reading its dataset failed: {error}") from error
