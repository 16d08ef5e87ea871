"""Reads the tensors of a checkpoint, which ``torch.distributed.checkpoint`` has written."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from nbmgpu.errors import CheckpointError

METADATA = ".metadata"


def tensor_key(number: int) -> str:
    """Return the name of a tensor in a checkpoint."""
    return f"tensor-{number}"


def read_tensors(
    folder: Path, number: int, damaged: Callable[[str, Exception | str], CheckpointError]
) -> list[Tensor]:
    """Read the first ``number`` tensors, on the CPU, one file after the other.

    Args:
        folder: the checkpoint; its files are one's own, as they are unpickled.
        number: how many tensors.
        damaged: returns the error that a file cannot be read.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    import torch
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    keys = [tensor_key(at) for at in range(number)]
    tensors: dict[str, Any] = {}
    places: dict[str, list[Any]] = {}
    files: dict[str, dict[str, Any]] = {}
    try:
        metadata = FileSystemReader(folder).read_metadata()
        for key in keys:
            entry: Any = metadata.state_dict_metadata[key]
            tensors[key] = torch.empty(entry.size, dtype=entry.properties.dtype)
        for index, place in metadata.storage_data.items():
            if index.fqn in tensors:
                files.setdefault(place.relative_path, {})[index.fqn] = tensors[index.fqn]
                places.setdefault(place.relative_path, []).append(place)
    except Exception as error:  # a pickle: any damage
        raise damaged(METADATA, error) from error
    for name, own in files.items():
        try:
            _check(folder / name, places[name])
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as asked for
                load(own, storage_reader=FileSystemReader(folder), no_dist=True)
        except CheckpointException as error:
            cause = next(iter(error.failures.values()))[0]
            raise damaged(name, str(cause).partition("\n")[0]) from error
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise damaged(name, error) from error
    return [tensors[key] for key in keys]


def _check(path: Path, places: list[Any]) -> None:
    """Compare checksums, which torch writes and does not read.

    Args:
        path: a file with an archive for each tensor.
        places: where these are.

    Raises:
        ValueError: one is another one.
        zipfile.BadZipFile: the file has no archive there.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        for place in places:
            file.seek(place.offset)
            archive = zipfile.ZipFile(io.BytesIO(file.read(place.length)))
            has_checksums = any(each.CRC for each in archive.infolist())  # set_crc32_options
            if has_checksums and archive.testzip() is not None:
                raise ValueError("the checksum of a tensor is another one")
