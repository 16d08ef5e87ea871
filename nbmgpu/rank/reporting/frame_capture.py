"""Saves the frames of an exception, with their variables, for ``%mgpu debug``."""

from __future__ import annotations

import io
import linecache
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from nbmgpu.runs.folder import write_atomically
from nbmgpu.runs.post_mortem import Frame, NotSaved, PostMortem
from nbmgpu.runs.stacks import CELL_FILE_MARK
from nbmgpu.serialization.code_objects import dispatch_table

from .failures import PACKAGE

RUN_BYTES = 64 << 20
"""Bytes that all ranks of a run save."""

LEAST_BYTES = 1 << 20
"""Bytes that a rank may save, however many there are."""

SECONDS = 2.0
"""Time that saving may take: the results of the run are complete, but its end waits for it."""

INNERMOST, OUTERMOST = 30, 20
"""Frames that are saved of a recursion."""

REPEATED = 1.0
"""Seconds after which it is ended once more."""


class TimeUpError(BaseException):
    """Saving has taken too long; no class that is pickled may catch it."""


def save_frames(
    path: Path, error: BaseException, is_hidden: Callable[[str], bool], world_size: int
) -> None:
    """Save the frames of ``error`` from the cell on, without nbmgpu's own.

    Innermost frames come first, until there is no room or time left: later values are described
    instead.

    Args:
        path: the file.
        error: what the cell has raised.
        is_hidden: whether a name in the cell's namespace is not the cell's.
        world_size: number of ranks that share ``RUN_BYTES``.

    Raises:
        OSError: it cannot be written.
    """
    found = list(_frames_of(error.__traceback__))[::-1]
    if not found:  # a syntax error
        return
    if len(found) > INNERMOST + OUTERMOST:
        found = found[:INNERMOST] + found[-OUTERMOST:]
    values = _PickledValues(max(RUN_BYTES // world_size, LEAST_BYTES))
    frames = [_without_variables(frame, line) for frame, line in found]
    with _time_limit(SECONDS):
        for (frame, _), saved in zip(found, frames, strict=True):
            is_cell = frame.f_locals is frame.f_globals
            hidden = is_hidden if is_cell else _is_private
            for name, value in list(frame.f_locals.items()):
                if not hidden(name) and not isinstance(value, ModuleType):
                    saved.variables[name] = values.pickled(value)
    files = {frame.file for frame in frames}
    sources = {file: "".join(linecache.getlines(file)) for file in files if not Path(file).exists()}
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomically(path, pickle.dumps(PostMortem(tuple(reversed(frames)), sources)))


def _without_variables(frame: FrameType, line: int) -> Frame:
    code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
    return Frame(code.co_filename, code.co_name, module, line, {})


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """End the block after ``seconds``, also one that sleeps or waits for a lock."""

    def end(*_: object) -> None:
        raise TimeUpError

    before = signal.signal(signal.SIGALRM, end)
    # Repeated, as what is raised in a callback of the garbage collector is lost.
    signal.setitimer(signal.ITIMER_REAL, seconds, REPEATED)
    try:
        with suppress(TimeUpError):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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


class _PickledValues:
    """Pickles values, each object once, as long as there is room."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._most = budget // 2  # of one value
        self._by_id: dict[int, bytes] = {}

    def pickled(self, value: Any) -> bytes:
        """Return the pickle of ``value``, or of a description where there is no room."""
        if (known := self._by_id.get(id(value))) is None:
            room = max(min(self._budget, self._most), 0)
            known = self._by_id[id(value)] = _pickled(value, room)
        self._budget -= len(known)
        return known if self._budget >= 0 else _description(value, "too large")


def _pickled(value: Any, room: int) -> bytes:
    buffer = _LimitedBuffer(room)
    try:
        _Pickler(buffer, room).dump(value)
    except TimeUpError:
        raise
    except OverflowError:
        return _description(value, "too large")
    except BaseException as error:  # any class may raise anything
        return _description(value, repr(error))
    return buffer.getvalue()


def _description(value: Any, why: str) -> bytes:
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
        self.dispatch_table = dispatch_table()
        super().__init__(file)
        self._budget = budget
        self._copies: dict[int, Tensor] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, io.IOBase):  # cloudpickle would read the whole file
            return NotSaved, (f"{_describe(obj)}: a file",)
        if not isinstance(obj, Tensor):
            return super().reducer_override(obj)
        if id(obj) in self._copies:
            return NotImplemented  # as torch does
        local = obj.to_local() if hasattr(obj, "to_local") else obj
        if local.numel() * local.element_size() > self._budget:
            return NotSaved, (f"{_describe(obj)}: too large",)
        if _is_freed(local):
            return NotSaved, (f"{_describe(obj)}: its memory is free while the model is sharded",)
        copy = local.detach().cpu().clone()
        if isinstance(obj, nn.Parameter):
            copy = nn.Parameter(copy, obj.requires_grad)
        else:
            copy.requires_grad_(obj.requires_grad)
        self._copies[id(copy)] = copy
        return _with_grad, (copy, obj.grad if obj.is_leaf else None)


def _is_freed(tensor: Tensor) -> bool:
    """Return whether a plain tensor has no memory for its elements: reading it would crash."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
        return False
    return tensor.numel() > 0 and not tensor.is_meta and not tensor.untyped_storage().nbytes()


def _with_grad(tensor: Tensor, grad: Tensor | None) -> Tensor:
    tensor.grad = grad
    return tensor


def _describe(value: Any) -> str:
    """Return the type of ``value``; of a tensor also its shape, dtype and device."""
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{type(value).__name__}, {kind}, shape {tuple(value.shape)}, on {value.device}"
    return type(value).__qualname__
