"""The pickler and unpickler of bundles.

They extend cloudpickle:

- Tensors and arrays are pickled as views of memory blocks (``nbmgpu.serialization.memory_blocks``).
- ``.grad`` is included, as a cell may begin with ``optimizer.step()``.
- Functions of the notebook share one namespace on the other side, the rank's own, so that
  ``global`` statements and later redefinitions have the same effect as in the notebook.
- Both sides keep the pickle memo.  Its indices identify an object on either side, so that results
  can be restored into the notebook's own objects.
"""

from __future__ import annotations

import functools
import io
import pickle
import types
from collections.abc import Callable, Iterable, Mapping
from pickle import PickleBuffer
from typing import Any

import cloudpickle
import numpy as np
from cloudpickle.cloudpickle import _class_setstate

from .address_space import BufferEntry, address_of
from .code_objects import dispatch_table
from .library_overrides import overrides_in
from .memmap_arrays import is_mapped_file, load_mapped_file, place_in_file
from .memory_blocks import CPU, BlockTable
from .notebook_types import reduce_class_with_slots
from .reducers import custom_reduce, has_reducer, torch_types
from .tensor_views import (
    load_array,
    load_tensor,
    loading_namespace,
    reduce_conj_or_neg,
    set_tensor_state,
)

IMPORTED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
"""Types of what ranks import, unless it is the notebook's own."""

INLINE = 4096
"""Buffers of other libraries that are smaller than this many bytes stay in the stream."""


class _Namespace:
    """Represents the notebook's namespace in a pickle; unpickles as the loader's namespace."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return loading_namespace, ()


class BundlePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles objects one after another into one stream with one memo.

    Attributes:
        file: the stream.
        blocks: the memory blocks behind tensors and arrays.
        buffers: out-of-band buffers of other libraries.
        detached: the number of tensors that were detached from an autograd graph.
        overrides: attributes that the notebook has set on classes that are pickled by name.
        modules: modules of classes and functions, and modules themselves.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        include_globals: bool = True,
        blocks: BlockTable | None = None,
    ) -> None:
        """Initialize the pickler.

        Args:
            namespace: the namespace that functions share on both sides.
            include_globals: whether functions include the globals that they use.  Otherwise they
                find their globals on the other side.
            blocks: the table to add blocks to.
        """
        self._shared = namespace
        self._include_globals = include_globals
        self.file = io.BytesIO()
        self.dispatch_table = dispatch_table()
        self.blocks = BlockTable() if blocks is None else blocks
        self.buffers: list[BufferEntry] = []
        # Not a bound method: the reference cycle would keep the pickler, its memo and so the
        # notebook's objects alive until the next garbage collection.
        take = functools.partial(_take_buffer, self.blocks, self.buffers)
        super().__init__(self.file, protocol=5, buffer_callback=take)
        self.detached = 0
        self.overrides: set[str] = set()
        self.modules: set[str] = set()
        self._default_types: dict[int, tuple[type, bool]] = {}
        self.globals_ref[id(namespace)] = _Namespace()

    def reducer_override(self, obj: Any) -> Any:
        """Reduce tensors and arrays to views; use the reducers and cloudpickle for the rest."""
        if self.uses_default_pickling(type(obj)):
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
            torch_types.refuse_distributed(obj)
            unflagged = reduce_conj_or_neg(obj) if type(obj) is torch.Tensor else None
            return NotImplemented if unflagged is None else unflagged
        if isinstance(obj, IMPORTED):
            module = obj.__name__ if isinstance(obj, types.ModuleType) else obj.__module__
            if module:  # methods of builtin objects have none
                self.modules.add(str(module))
        reduced_custom = custom_reduce(obj)
        reduced = super().reducer_override(obj) if reduced_custom is None else reduced_custom
        if isinstance(obj, types.FunctionType) and isinstance(reduced, tuple):
            return self._reduce_function(obj, reduced)
        if isinstance(obj, type):
            if isinstance(reduced, tuple) and reduced[-1] is _class_setstate:
                return reduce_class_with_slots(reduced)
            self.overrides.update(overrides_in(obj))
        return reduced

    def uses_default_pickling(self, kind: type) -> bool:
        """Return whether no hook applies to objects of type ``kind``; the result is cached."""
        known = self._default_types.get(id(kind))
        if known is None:  # by id, because a type may not be hashable
            known = self._default_types[id(kind)] = kind, _uses_default_pickling(kind)
        return known[1]

    def _reduce_function(self, function: types.FunctionType, reduced: Any) -> Any:
        """Keep closure cells shared between functions; cloudpickle would copy them."""
        make, (*args, _), (attributes, slots), *rest = reduced
        slots["__closure__"] = None
        if function.__globals__ is self._shared and not self._include_globals:
            slots["__globals__"] = {}
        return make, (*args, function.__closure__), (attributes, slots), *rest

    def _reduce_array(self, array: np.ndarray[Any, Any]) -> Any:
        if is_mapped_file(array):
            return load_mapped_file, place_in_file(array)
        if isinstance(array, np.memmap):
            array = array.view(np.ndarray)
        if type(array) is not np.ndarray or array.dtype.hasobject:
            return NotImplemented
        space, address = self.blocks.add_array(array)
        writeable = array.flags.writeable
        return load_array, (space, address, array.dtype, array.shape, array.strides, writeable)

    def _reduce_tensor(self, tensor: Any) -> Any:
        import torch

        with torch._C.DisableTorchFunctionSubclass():
            space, address = self.blocks.add_tensor(tensor)
            form = tensor.dtype, tuple(tensor.shape), tensor.stride()
            args = (space, address, *form, tensor.requires_grad, type(tensor))
            before = list((tensor._backward_hooks or {}).values())
            after = list((tensor._post_accumulate_grad_hooks or {}).values())
            grad, extra = tensor.grad, dict(tensor.__dict__)
        if grad is None and not before and not after and not extra:
            return load_tensor, args
        return load_tensor, args, (grad, before, after, extra), None, None, set_tensor_state


def _take_buffer(blocks: BlockTable, buffers: list[BufferEntry], buffer: PickleBuffer) -> bool:
    """Store a large buffer out of band; return whether it goes into the stream instead."""
    raw = buffer.raw()
    if raw.nbytes < INLINE:
        return True
    low = address_of(raw)
    space, address = blocks.add(CPU, low, low + raw.nbytes, raw)
    buffers.append(BufferEntry(space, address, raw.nbytes))
    return False


def _uses_default_pickling(kind: type) -> bool:
    import torch

    special = (np.ndarray, torch.Tensor, type, types.FunctionType)
    return not issubclass(kind, special) and not has_reducer(kind)


@functools.cache
def _device_types() -> tuple[str, str]:
    """Return the types of devices whose memory is sent; ``meta`` has none."""
    from nbmgpu.environment.accelerator import accelerator_type

    return CPU, accelerator_type()


def _is_view(tensor: Any) -> bool:
    """Return whether a tensor is a plain strided view of the memory of the CPU or a GPU."""
    import torch

    kind: Any = type(tensor)
    plain: tuple[Any, ...] = (torch.Tensor.__reduce_ex__, torch.nn.Parameter.__reduce_ex__)
    return (
        kind.__reduce_ex__ in plain
        and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and tensor.layout is torch.strided
        and tensor.device.type in _device_types()
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.is_nested)
    )


class HoldingPickler(BundlePickler):
    """Pickles a key in place of an object that the ranks hold."""

    def __init__(self, namespace: dict[str, Any], held: Mapping[int, Any]) -> None:
        """Refer to ``held``, objects by key."""
        super().__init__(namespace)
        self._keys = {id(obj): key for key, obj in held.items()}

    def persistent_id(self, obj: Any) -> int | None:
        """Return the key of an object that is held, None for others."""
        return self._keys.get(id(obj))


class BundleUnpickler(pickle.Unpickler):
    """Loads what a ``BundlePickler`` wrote; its memo stays readable."""

    def __init__(
        self,
        stream: memoryview,
        buffers: Iterable[memoryview],
        held: Mapping[int, Any] = types.MappingProxyType({}),
    ) -> None:
        """Read objects from ``stream`` one after another; those of ``held`` are there by key."""
        super().__init__(io.BytesIO(stream), buffers=buffers)
        self._held = held

    def persistent_load(self, key: int) -> Any:
        """Return the object that is held under ``key``."""
        return self._held[key]
