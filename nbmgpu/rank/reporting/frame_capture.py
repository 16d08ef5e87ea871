"""Saves the frames of an exception, with their variables, for ``%mgpu debug``."""

from __future__ import annotations

import io
import linecache
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

import cloudpickle
from torch import Tensor, nn

from nbmgpu.runs.folder import write_atomically
from nbmgpu.runs.post_mortem import Frame, NotSaved, PostMortem
from nbmgpu.runs.stacks import CELL_FILE_MARK

from .failures import PACKAGE

RUN_BYTES = 64 << 20
"""Bytes that all ranks of a run save."""

LEAST_BYTES = 1 << 20
"""Bytes that a rank may save, however many there are."""


def save_frames(
    path: Path, error: BaseException, is_hidden: Callable[[str], bool], world_size: int
) -> None:
    """Save the frames of ``error`` from the cell on, without nbmgpu's own.

    Innermost frames come first, until there is no room left: later values are described instead.

    Args:
        path: the file.
        error: what the cell has raised.
        is_hidden: whether a name in the cell's namespace is not the cell's.
        world_size: number of ranks that share ``RUN_BYTES``.

    Raises:
        OSError: it cannot be written.
    """
    budget = max(RUN_BYTES // world_size, LEAST_BYTES)
    frames: list[Frame] = []
    for frame, line in reversed(list(_frames_of(error.__traceback__))):
        is_cell = frame.f_locals is frame.f_globals
        hidden = is_hidden if is_cell else _is_private
        variables: dict[str, bytes] = {}
        for name, value in list(frame.f_locals.items()):
            if hidden(name) or isinstance(value, ModuleType):
                continue
            variables[name] = data = _pickled(value, budget)
            budget -= len(data)
        code = frame.f_code
        module = str(frame.f_globals.get("__name__", ""))
        frames.append(Frame(code.co_filename, code.co_name, module, line, variables))
    if not frames:  # a syntax error
        return
    files = {frame.file for frame in frames}
    sources = {file: "".join(linecache.getlines(file)) for file in files if not Path(file).exists()}
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomically(path, pickle.dumps(PostMortem(tuple(reversed(frames)), sources)))


def _frames_of(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """Yield each frame from the cell's on, with its line."""
    in_cell = False
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        in_cell = in_cell or CELL_FILE_MARK in file
        if in_cell and not Path(file).is_relative_to(PACKAGE):
            yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _is_private(name: str) -> bool:
    return name.startswith("__")


def _pickled(value: Any, budget: int) -> bytes:
    """Return the pickle of ``value``; that of a description if it takes more than ``budget``."""
    buffer = _LimitedBuffer(budget)
    try:
        _Pickler(buffer, budget).dump(value)
        return buffer.getvalue()
    except Exception as error:  # any class may raise anything
        why = "too large" if isinstance(error, OverflowError) else repr(error)
        return pickle.dumps(NotSaved(f"{_describe(value)}: {why}"))


class _LimitedBuffer(io.BytesIO):
    """Raises OverflowError instead of holding more than ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Any) -> int:
        if self.tell() + len(memoryview(data).cast("B")) > self._limit:
            raise OverflowError
        return super().write(data)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles tensors as copies on the CPU, without their graphs; large ones as descriptions."""

    def __init__(self, file: io.BytesIO, budget: int) -> None:
        super().__init__(file)
        self._budget = budget
        self._copies: dict[int, Tensor] = {}

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return super().reducer_override(obj)
        if id(obj) in self._copies:
            return NotImplemented  # as torch does
        local = obj.to_local() if hasattr(obj, "to_local") else obj
        if local.numel() * local.element_size() > self._budget:
            return NotSaved, (f"{_describe(obj)}: too large",)
        copy = local.detach().cpu().clone()
        if isinstance(obj, nn.Parameter):
            copy = nn.Parameter(copy, obj.requires_grad)
        else:
            copy.requires_grad_(obj.requires_grad)
        self._copies[id(copy)] = copy
        return _with_grad, (copy, obj.grad if obj.is_leaf else None)


def _with_grad(tensor: Tensor, grad: Tensor | None) -> Tensor:
    tensor.grad = grad
    return tensor


def _describe(value: Any) -> str:
    """Return the type of ``value``; of a tensor also its shape, dtype and device."""
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{type(value).__name__}, {kind}, shape {tuple(value.shape)}, on {value.device}"
    return type(value).__qualname__
