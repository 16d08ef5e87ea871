"""The pickler and unpickler of bundles.

What they add to cloudpickle:

- tensors and arrays travel as views of memory blocks (``nbmgpu.bundle.blocks``);
- ``.grad`` travels too: a cell may begin with ``optimizer.step()``;
- functions of the notebook share one namespace on the other side, the rank's
  own, so that ``global`` and later redefinitions mean what they mean here;
- both sides keep the pickle memo.  Its indices name an object on either side,
  which is how results find the notebook's own objects again.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from .blocks import CPU, Block, BlockTable

INLINE = 1024
"""Arrays below this many bytes are cheaper inside the pickle stream than as a block."""


class _Namespace:
    """Stands for the notebook's namespace in a pickle; becomes the loader's namespace."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return _loading_namespace, ()


class Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles objects one after another into one stream with one memo."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        """Treat the globals of functions in ``namespace`` as the shared namespace."""
        self.file = io.BytesIO()
        super().__init__(self.file, protocol=5)
        self.blocks = BlockTable()
        self.globals_ref[id(namespace)] = _Namespace()

    def reducer_override(self, obj: Any) -> Any:
        """Reduce tensors and arrays to views; leave the rest to cloudpickle."""
        if isinstance(obj, np.ndarray):
            return self._reduce_array(obj)
        kind = type(obj)
        if kind.__module__.startswith("torch") and _is_plain_tensor(obj):
            return self._reduce_tensor(obj)
        return super().reducer_override(obj)

    def _reduce_array(self, array: np.ndarray[Any, Any]) -> Any:
        if type(array) is np.memmap and array.filename and array.base is not None:
            mode = "r+" if array.mode == "w+" else array.mode
            offset = array.offset
            order = "C" if array.flags.c_contiguous else "F"
            args = (array.filename, array.dtype, mode, offset, array.shape, order)
            return np.memmap, args
        if type(array) is not np.ndarray or array.dtype.hasobject or array.nbytes < INLINE:
            return NotImplemented
        index, offset = self.blocks.of_array(array)
        args = (index, array.dtype, array.shape, array.strides, offset, array.flags.writeable)
        return load_array, args

    def _reduce_tensor(self, tensor: Any) -> Any:
        index = self.blocks.of_tensor(tensor)
        leaf = tensor.is_leaf
        args = (
            index,
            tensor.dtype,
            tensor.storage_offset(),
            tuple(tensor.shape),
            tensor.stride(),
            tensor.requires_grad and leaf,
            type(tensor),
        )
        grad = tensor.grad if leaf else None
        hooks = list((tensor._backward_hooks or {}).values()) if leaf else []
        extra = dict(tensor.__dict__)
        if grad is None and not hooks and not extra:
            return load_tensor, args
        return load_tensor, args, (grad, hooks, extra), None, None, set_tensor_state


def _is_plain_tensor(obj: Any) -> bool:
    """Tell whether ``obj`` is a dense tensor or parameter in CPU or CUDA memory."""
    import torch

    if type(obj) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return False
    return (
        obj.layout is torch.strided
        and obj.device.type in (CPU, "cuda")
        and not (obj.is_quantized or obj.is_conj() or obj.is_neg() or obj.is_nested)
    )


class Unpacker(pickle.Unpickler):
    """Loads what a ``Packer`` wrote, with a memo that stays readable."""

    def __init__(self, stream: memoryview) -> None:
        """Read objects from ``stream`` one after another."""
        super().__init__(io.BytesIO(stream))


class Memory:
    """The blocks of a bundle on the receiving side, made on first use.

    ``storage(i)`` gives block ``i`` as a torch storage on its device, ``buffer(i)``
    as CPU bytes; ``low(i)`` is the offset in the sender's memory where it starts.
    """

    def __init__(self, blocks: list[memoryview], table: list[BlockEntry], device: str) -> None:
        """Take blocks and what is known of them; CUDA blocks go to ``device``."""
        self.raw = blocks
        self.table = table
        self.device = device
        self._storages: dict[int, Any] = {}

    def low(self, index: int) -> int:
        """Return the sender's offset of the first byte that travelled."""
        return self.table[index].low

    def buffer(self, index: int) -> memoryview:
        """Return the bytes of block ``index`` in CPU memory."""
        return self.raw[index]

    def storage(self, index: int) -> Any:
        """Return block ``index`` as an untyped torch storage."""
        import torch

        if index not in self._storages:
            raw, device = self.raw[index], self.table[index].device
            if raw.nbytes:
                data = torch.frombuffer(raw, dtype=torch.uint8)
            else:
                data = torch.empty(0, dtype=torch.uint8)
            if device != CPU and self.device != CPU:
                data = data.to(self.device)
            self._storages[index] = data.untyped_storage()
        return self._storages[index]

    def known(self) -> Iterator[tuple[int, int, str]]:
        """Yield ``(index, address, device)`` of every block in this process."""
        for index, raw in enumerate(self.raw):
            if raw.nbytes:
                yield index, address_of(raw), CPU
            if (storage := self._storages.get(index)) is not None and storage.device.type != CPU:
                yield index, storage.data_ptr(), str(storage.device)


def address_of(raw: memoryview) -> int:
    """Return the address of the first byte of ``raw``."""
    return int(np.frombuffer(raw, np.uint8).__array_interface__["data"][0])


_memory: Memory | None = None
_namespace: dict[str, Any] = {}


@contextmanager
def loading(memory: Memory, namespace: dict[str, Any]) -> Iterator[None]:
    """Let the functions below, which pickles call by name, find their surroundings."""
    global _memory, _namespace
    before = _memory, _namespace
    _memory, _namespace = memory, namespace
    try:
        yield
    finally:
        _memory, _namespace = before


def _loading_namespace() -> dict[str, Any]:
    return _namespace


def load_array(
    index: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    writeable: bool,
) -> np.ndarray[Any, Any]:
    """Rebuild an array as a view of block ``index``; ``offset`` in the sender's bytes."""
    assert _memory is not None
    array: np.ndarray[Any, Any] = np.ndarray(
        shape, dtype, _memory.buffer(index), offset - _memory.low(index), strides
    )
    array.flags.writeable = writeable
    return array


def load_tensor(
    index: int,
    dtype: Any,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    kind: type,
) -> Any:
    """Rebuild a tensor as a view of block ``index``; ``offset`` in the sender's elements."""
    import torch

    assert _memory is not None
    storage = _memory.storage(index)
    item = torch.empty(0, dtype=dtype).element_size()
    start = offset - _memory.low(index) // item if storage.nbytes() else 0
    tensor = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, start, shape, stride)
    if kind is not torch.Tensor:
        tensor = kind(tensor, requires_grad) if kind is torch.nn.Parameter else kind(tensor)
    elif requires_grad:
        tensor.requires_grad_()
    return tensor


def set_tensor_state(tensor: Any, state: tuple[Any, list[Any], dict[str, Any]]) -> None:
    """Give a rebuilt tensor its ``.grad``, its hooks and its Python attributes."""
    grad, hooks, extra = state
    tensor.grad = grad
    for hook in hooks:
        tensor.register_hook(hook)
    tensor.__dict__.update(extra)


class BlockEntry(NamedTuple):
    """What a receiver must know of a block.

    ``low`` is the sender's offset of the first byte that travelled.  ``origin`` is set
    for memory that came in a bundle and goes back: the block's index there;
    ``unchanged`` says that the bytes are as they were, and did not travel.
    """

    device: str
    low: int
    origin: int | None
    unchanged: bool


def block_table(blocks: list[Block]) -> bytes:
    """Pickle one ``BlockEntry`` per block."""
    entries = [
        tuple(BlockEntry(b.device, min(b.low, b.nbytes), b.origin, b.unchanged)) for b in blocks
    ]
    return pickle.dumps(entries)


def read_block_table(table: memoryview) -> list[BlockEntry]:
    """Read what ``block_table`` wrote."""
    return [BlockEntry(*entry) for entry in pickle.loads(table)]
