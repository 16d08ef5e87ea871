"""The pickler and unpickler of bundles.

What they add to cloudpickle:

- tensors and arrays travel as views of memory blocks (``nbmgpu.serialization.memory_blocks``);
- ``.grad`` travels too: a cell may begin with ``optimizer.step()``;
- functions of the notebook share one namespace on the other side, the rank's
  own, so that ``global`` and later redefinitions mean what they mean here;
- both sides keep the pickle memo.  Its indices name an object on either side,
  which is how results find the notebook's own objects again.
"""

from __future__ import annotations

import functools
import io
import pickle
import types
from collections.abc import Callable, Iterable
from pickle import PickleBuffer
from typing import Any

import cloudpickle
import numpy as np
from cloudpickle.cloudpickle import _class_setstate

from .library_overrides import patches_in
from .mapped_memory import BufferEntry, address_of
from .memmaps import is_mapped_file, load_mapped_file, place_in_file
from .memory_blocks import CPU, BlockTable
from .reducers import may_need_mending, mended_class, mended_reduce
from .tensor_views import flagless, load_array, load_tensor, loading_namespace, set_tensor_state

INLINE = 4096
"""Buffers of other libraries below this many bytes stay inside the pickle stream."""


class _Namespace:
    """Stands for the notebook's namespace in a pickle; becomes the loader's namespace."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return loading_namespace, ()


class Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles objects one after another into one stream with one memo.

    ``detached`` counts tensors that leave an autograd graph behind; ``patches`` are what the
    notebook has put into classes that travel by their names.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        names_travel: bool = True,
        blocks: BlockTable | None = None,
    ) -> None:
        """Treat ``namespace`` as the shared one, and ``blocks`` as the table to fill.

        When ``names_travel``, its functions bring along what they refer to; otherwise
        they find their names on the other side.
        """
        self._shared = namespace
        self._names_travel = names_travel
        self.file = io.BytesIO()
        # A chain of tables, as cloudpickle has it, is asked in Python for every object.
        self.dispatch_table: dict[Any, Any] = dict(cloudpickle.Pickler.dispatch_table)
        self.blocks = BlockTable() if blocks is None else blocks
        self.buffers: list[BufferEntry] = []
        # No method of this object, which remembers all that it has met: it would keep itself, and
        # the notebook's objects, until the collector comes by.
        take = functools.partial(_take_buffer, self.blocks, self.buffers)
        super().__init__(self.file, protocol=5, buffer_callback=take)
        self.detached = 0
        self.patches: set[str] = set()
        self._plain_kinds: dict[int, tuple[type, bool]] = {}
        self.globals_ref[id(namespace)] = _Namespace()

    def reducer_override(self, obj: Any) -> Any:
        """Reduce tensors and arrays to views, mend a few types, leave the rest to cloudpickle."""
        if self.is_plain(type(obj)):
            return NotImplemented
        import torch

        if isinstance(obj, np.ndarray):
            return self._reduce_array(obj)
        if isinstance(obj, torch.Tensor):
            if obj.requires_grad and not obj.is_leaf:
                self.detached += 1
                obj = obj.detach()
            if _is_view(obj):
                return self._reduce_tensor(obj)
            unflagged = flagless(obj) if type(obj) is torch.Tensor else None
            return NotImplemented if unflagged is None else unflagged
        mended = mended_reduce(obj)
        reduced = super().reducer_override(obj) if mended is None else mended
        if isinstance(obj, types.FunctionType) and isinstance(reduced, tuple):
            return self._mended_function(obj, reduced)
        if isinstance(obj, type):
            if isinstance(reduced, tuple) and reduced[-1] is _class_setstate:
                return mended_class(reduced)
            self.patches.update(patches_in(obj))
        return reduced

    def is_plain(self, kind: type) -> bool:
        """Tell whether objects of type ``kind`` pickle as they would anywhere; ask once."""
        known = self._plain_kinds.get(id(kind))
        if known is None:  # by id: a type need not be hashable
            known = self._plain_kinds[id(kind)] = kind, _is_plain(kind)
        return known[1]

    def _mended_function(self, function: types.FunctionType, reduced: Any) -> Any:
        """Let functions that share a variable share it on the other side; cloudpickle copies it."""
        make, (*args, _), (attributes, slots), *rest = reduced
        slots["__closure__"] = None
        if function.__globals__ is self._shared and not self._names_travel:
            slots["__globals__"] = {}
        return make, (*args, function.__closure__), (attributes, slots), *rest

    def _reduce_array(self, array: np.ndarray[Any, Any]) -> Any:
        if is_mapped_file(array):
            return load_mapped_file, place_in_file(array)
        if isinstance(array, np.memmap):
            array = array.view(np.ndarray)
        if type(array) is not np.ndarray or array.dtype.hasobject:
            return NotImplemented
        space, address = self.blocks.take_in_array(array)
        writeable = array.flags.writeable
        return load_array, (space, address, array.dtype, array.shape, array.strides, writeable)

    def _reduce_tensor(self, tensor: Any) -> Any:
        import torch

        with torch._C.DisableTorchFunctionSubclass():
            space, address = self.blocks.take_in_tensor(tensor)
            form = tensor.dtype, tuple(tensor.shape), tensor.stride()
            args = (space, address, *form, tensor.requires_grad, type(tensor))
            before = list((tensor._backward_hooks or {}).values())
            after = list((tensor._post_accumulate_grad_hooks or {}).values())
            grad, extra = tensor.grad, dict(tensor.__dict__)
        if grad is None and not before and not after and not extra:
            return load_tensor, args
        return load_tensor, args, (grad, before, after, extra), None, None, set_tensor_state


def _take_buffer(blocks: BlockTable, buffers: list[BufferEntry], buffer: PickleBuffer) -> bool:
    """Keep a large buffer out of the stream; return whether it goes into it."""
    raw = buffer.raw()
    if raw.nbytes < INLINE:
        return True
    low = address_of(raw)
    space, address = blocks.take_in(CPU, low, low + raw.nbytes, raw)
    buffers.append(BufferEntry(space, address, raw.nbytes))
    return False


def _is_plain(kind: type) -> bool:
    import torch

    special = (np.ndarray, torch.Tensor, type, types.FunctionType)
    return not issubclass(kind, special) and not may_need_mending(kind)


def _is_view(tensor: Any) -> bool:
    """Tell whether a tensor is a plain view of CPU or CUDA memory."""
    import torch

    kind: Any = type(tensor)
    plain: tuple[Any, ...] = (torch.Tensor.__reduce_ex__, torch.nn.Parameter.__reduce_ex__)
    return (
        kind.__reduce_ex__ in plain
        and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and tensor.layout is torch.strided
        and tensor.device.type in (CPU, "cuda")
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.is_nested)
    )


class Unpacker(pickle.Unpickler):
    """Loads what a ``Packer`` wrote, with a memo that stays readable."""

    def __init__(self, stream: memoryview, buffers: Iterable[memoryview]) -> None:
        """Read objects from ``stream`` one after another."""
        super().__init__(io.BytesIO(stream), buffers=buffers)
