"""Reads the tensors of a checkpoint, which ``torch.distributed.checkpoint`` has written.

Each is an archive of ``torch.save`` within a file.  They are mapped, not read: several ranks of a
machine share what they read of them, and the system may drop it again.
"""

from __future__ import annotations

import io
import mmap
import pickle
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


def map_tensors(
    folder: Path, number: int, damaged: Callable[[str, Exception | str], CheckpointError]
) -> list[Tensor]:
    """Map the first ``number`` tensors into memory, on the CPU, one file after the other.

    They can be changed: what is written stays in this process.

    Args:
        folder: the checkpoint; its files are one's own, as they are unpickled.
        number: how many tensors.
        damaged: returns the error that a file cannot be read.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    keys = dict.fromkeys(tensor_key(at) for at in range(number))
    places: dict[str, dict[str, Any]] = {}
    try:
        metadata = FileSystemReader(folder).read_metadata()
        for index, place in metadata.storage_data.items():
            if index.fqn in keys:
                places.setdefault(place.relative_path, {})[index.fqn] = place
        if missing := keys.keys() - {key for own in places.values() for key in own}:
            raise ValueError(f"it does not have {min(missing)}")
    except Exception as error:  # a pickle: any damage
        raise damaged(METADATA, error) from error
    tensors: dict[str, Tensor] = {}
    for name, own in places.items():
        try:
            with (folder / name).open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            for key, place in own.items():
                tensors[key] = _map_tensor(mapped, place.offset, place.length)
        except (OSError, ValueError, RuntimeError, pickle.PickleError, zipfile.BadZipFile) as error:
            raise damaged(name, str(error).partition("\n")[0]) from error
    return [tensors[key] for key in keys]


def _map_tensor(mapped: mmap.mmap, offset: int, length: int) -> Tensor:
    """Return the tensor of which there is an archive in a file.

    Args:
        mapped: the file.
        offset, length: where the archive is, in bytes.

    Raises:
        ValueError: its checksum is another one.
        zipfile.BadZipFile, RuntimeError: there is no archive of a tensor.
    """
    import torch

    content = mapped[offset : offset + length]
    archive = zipfile.ZipFile(io.BytesIO(content))
    # ``set_crc32_options`` writes none.  torch does not compare them when it reads.
    if any(each.CRC for each in archive.infolist()) and archive.testzip() is not None:
        raise ValueError("the checksum of a tensor is another one")
    tensor: Tensor = torch.load(io.BytesIO(content), map_location="meta", weights_only=True)
    if not tensor.numel():
        return torch.empty_like(tensor, device="cpu")
    (record,) = (each for each in archive.infolist() if "/data/" in each.filename)
    local = record.header_offset  # a header of 30 bytes, a name, and padding: APPNOTE.TXT, 4.3.7
    lengths = (content[local + at : local + at + 2] for at in (26, 28))
    start = local + 30 + sum(int.from_bytes(each, "little") for each in lengths)
    memory = torch.frombuffer(
        mapped, dtype=torch.uint8, count=record.file_size, offset=offset + start
    )
    return torch.empty(0, dtype=tensor.dtype).set_(
        memory.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )
