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

import copyreg
import enum
import io
import mmap
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle
import numpy as np
from cloudpickle.cloudpickle import _class_setstate, _should_pickle_by_reference

from .blocks import CPU, NOWHERE, BlockTable
from .memory import BufferEntry, Memory, address_of

INLINE = 4096
"""Buffers of other libraries below this many bytes stay inside the pickle stream."""


class _Namespace:
    """Stands for the notebook's namespace in a pickle; becomes the loader's namespace."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return _loading_namespace, ()


class Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles objects one after another into one stream with one memo.

    ``detached`` counts tensors that leave an autograd graph behind.
    """

    def __init__(self, namespace: dict[str, Any], names_travel: bool = True) -> None:
        """Treat ``namespace`` as the shared one.

        When ``names_travel``, its functions bring along what they refer to; otherwise
        they find their names on the other side.
        """
        self._shared = namespace
        self._names_travel = names_travel
        self.file = io.BytesIO()
        super().__init__(self.file, protocol=5, buffer_callback=self._take_buffer)
        self.blocks = BlockTable()
        self.buffers: list[BufferEntry] = []
        self.detached = 0
        self._mendable: dict[int, tuple[type, bool]] = {}
        self.globals_ref[id(namespace)] = _Namespace()

    def reducer_override(self, obj: Any) -> Any:
        """Reduce tensors and arrays to views, mend a few types, leave the rest to cloudpickle."""
        import torch

        if isinstance(obj, np.ndarray):
            return self._reduce_array(obj)
        if isinstance(obj, torch.Tensor):
            if obj.requires_grad and not obj.is_leaf:
                self.detached += 1
                obj = obj.detach()
            return self._reduce_tensor(obj) if _is_view(obj) else NotImplemented
        mended = mended_reduce(obj) if self._may_need_mending(type(obj)) else None
        reduced = super().reducer_override(obj) if mended is None else mended
        if isinstance(obj, types.FunctionType) and isinstance(reduced, tuple):
            return self._mended_function(obj, reduced)
        if isinstance(obj, type) and isinstance(reduced, tuple) and reduced[-1] is _class_setstate:
            return _mended_class(reduced)
        return reduced

    def _may_need_mending(self, kind: type) -> bool:
        """Tell whether ``mended_reduce`` has something to say of any object of type ``kind``."""
        known = self._mendable.get(id(kind))
        if known is None:  # by id: a type need not be hashable
            known = self._mendable[id(kind)] = kind, may_need_mending(kind)
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
            return _load_mapped_file, _place_in_file(array)
        if isinstance(array, np.memmap):
            array = array.view(np.ndarray)
        if type(array) is not np.ndarray or array.dtype.hasobject:
            return NotImplemented
        space, address = self.blocks.place_array(array)
        writeable = array.flags.writeable
        return load_array, (space, address, array.dtype, array.shape, array.strides, writeable)

    def _reduce_tensor(self, tensor: Any) -> Any:
        import torch

        with torch._C.DisableTorchFunctionSubclass():
            space, address = self.blocks.place_tensor(tensor)
            form = tensor.dtype, tuple(tensor.shape), tensor.stride()
            args = (space, address, *form, tensor.requires_grad, type(tensor))
            hooks = list((tensor._backward_hooks or {}).values())
            grad, extra = tensor.grad, dict(tensor.__dict__)
        if grad is None and not hooks and not extra:
            return load_tensor, args
        return load_tensor, args, (grad, hooks, extra), None, None, _set_tensor_state

    def _take_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Keep a large buffer out of the stream; return whether it goes into it."""
        raw = buffer.raw()
        if raw.nbytes < INLINE:
            return True
        low = address_of(raw)
        space, address = self.blocks.place(CPU, low, low + raw.nbytes, raw)
        self.buffers.append(BufferEntry(space, address, raw.nbytes))
        return False


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


def is_mapped_file(array: Any) -> bool:
    """Tell whether an array is a file that ranks can map for themselves.

    A copy-on-write map is not: what was written to it is in no file.
    """
    if not isinstance(array, np.memmap) or getattr(array, "_mmap", None) is None:
        return False
    if not array.filename:
        return False
    return array.mode != "c" and not array.dtype.hasobject and array.size > 0


def _place_in_file(array: Any) -> tuple[Any, ...]:
    mapped = memoryview(array._mmap)
    whole = np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
    # The map begins where the page of the first element does.
    page = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    offset = array.__array_interface__["data"][0] - whole + page
    mode = "r+" if array.flags.writeable else "r"
    return str(array.filename), mode, offset, array.dtype, array.shape, array.strides


def is_by_value(obj: Any) -> bool:
    """Tell whether a class or function is the notebook's own, not a module's."""
    return not _should_pickle_by_reference(obj)


def _mended_class(reduced: Any) -> Any:
    """Make slots as slots again, which cloudpickle leaves out."""
    make, (*names, body, number, extra), (attributes, slots), *rest, _ = reduced
    if "__slots__" in attributes:
        attributes.pop("__slotnames__", None)
        body = {**body, "__slots__": attributes.pop("__slots__")}
    return make, (*names, body, number, extra), (attributes, slots), *rest, _set_new_class


def may_need_mending(kind: type) -> bool:
    """Tell whether ``mended_reduce`` has something to say of any object of type ``kind``."""
    import torch.utils.data

    kinds = (
        BaseException, types.CellType, weakref.ReferenceType, io.IOBase,
        torch.utils.data.DataLoader, torch.optim.Optimizer, torch.nn.Module,
    )  # fmt: skip
    named = kind.__name__ in ("LeafSpec", "ConvertOutputsToFp32")
    stream = kind is type(sys.stdout) or kind is type(sys.stderr)
    return issubclass(kind, kinds) or named or stream or hasattr(kind, "_shared_state")


def mended_reduce(obj: Any) -> Any:
    """Reduce types whose own way loses something; return None for all others."""
    import torch.utils.data
    from torch.nn.utils.parametrize import is_parametrized

    if isinstance(obj, BaseException):
        kind = type(obj)
        if kind.__reduce__ is BaseException.__reduce__ and isinstance(
            kind.__init__, types.FunctionType
        ):  # whose arguments need not be ``args``
            return _rebuild_exception, (kind, obj.args), dict(obj.__dict__)
    elif isinstance(obj, types.CellType):
        return types.CellType, (), cell_content(obj), None, None, _fill_cell
    elif obj is sys.stdout or obj is sys.stderr:
        return _stream, ("stdout" if obj is sys.stdout else "stderr",)
    elif isinstance(obj, weakref.ReferenceType):
        return _reference, (obj(),)
    elif _shares_its_state(obj):
        return _one_of_many, (type(obj),), dict(obj.__reduce_ex__(4)[2])
    elif type(obj).__name__ == "LeafSpec" and type(obj).__module__ == "torch.utils._pytree":
        return _leaf_spec, ()
    elif type(obj).__name__ == "ConvertOutputsToFp32":  # accelerate's, which refuses
        return type(obj), (obj.model_forward,)
    elif isinstance(obj, io.TextIOWrapper):
        raise pickle.PicklingError("an open file belongs to the process that has opened it")
    elif isinstance(obj, torch.utils.data.DataLoader) and obj._iterator is not None:
        reduced: Any = obj.__reduce_ex__(4)
        function, args, state, *rest = reduced
        return function, args, {**state, "_iterator": None}, *rest  # its workers stay here
    elif isinstance(obj, torch.optim.Optimizer) and _has_torchs_state(obj):
        state = {k: v for k, v in obj.__dict__.items() if k not in NOT_OF_AN_OPTIMIZER}
        return copyreg.__newobj__, (type(obj),), state  # type: ignore[attr-defined]
    elif isinstance(obj, torch.nn.Module) and is_parametrized(obj):
        return copyreg.__newobj__, (type(obj),), dict(obj.__dict__)  # type: ignore[attr-defined]
    return None


NOT_OF_AN_OPTIMIZER = ("step", "_zero_grad_profile_name")
"""Attributes that a scheduler or ``__init__`` puts on an optimizer and can put there again."""


def _has_torchs_state(optimizer: Any) -> bool:
    """Tell whether an optimizer pickles as torch's do: without attributes of its own.

    LBFGS has such attributes, and so have optimizers that users write.
    """
    import torch

    own: Any = type(optimizer).__getstate__
    return own is torch.optim.Optimizer.__getstate__


def cell_content(cell: types.CellType) -> tuple[Any, ...]:
    """Return the content of a closure's cell as a tuple, which is empty when the cell is."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


class Unpacker(pickle.Unpickler):
    """Loads what a ``Packer`` wrote, with a memo that stays readable."""

    def __init__(self, stream: memoryview, buffers: Iterable[memoryview]) -> None:
        """Read objects from ``stream`` one after another."""
        super().__init__(io.BytesIO(stream), buffers=buffers)


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
    space: str,
    address: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    writeable: bool,
) -> np.ndarray[Any, Any]:
    """Rebuild an array as a view of the memory that was at ``address``."""
    assert _memory is not None
    array: np.ndarray[Any, Any]
    if address == NOWHERE:
        array = np.empty(shape, dtype)
    else:
        area, offset = _memory.find(space, address)
        array = np.ndarray(shape, dtype, area.buffer(), offset, strides)
    array.flags.writeable = writeable
    return array


def load_tensor(
    space: str,
    address: int,
    dtype: Any,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    kind: type,
) -> Any:
    """Rebuild a tensor as a view of the memory that was at ``address``."""
    import torch

    assert _memory is not None
    if address == NOWHERE:
        tensor = torch.empty_strided(shape, stride, dtype=dtype, device=_memory.device(space))
    else:
        area, offset = _memory.find(space, address)
        storage, start = area.storage(offset)
        tensor = torch.empty(0, dtype=dtype, device=storage.device)
        tensor.set_(storage, start // tensor.element_size(), shape, stride)
    if kind is torch.Tensor:
        return tensor.requires_grad_() if requires_grad else tensor
    return torch.Tensor._make_subclass(kind, tensor, requires_grad)


def _set_tensor_state(tensor: Any, state: tuple[Any, list[Any], dict[str, Any]]) -> None:
    """Give a rebuilt tensor its ``.grad``, its hooks and its Python attributes."""
    grad, hooks, extra = state
    tensor.grad = grad
    for hook in hooks:
        tensor.register_hook(hook)
    tensor.__dict__.update(extra)


def _stream(name: str) -> Any:
    return getattr(sys, name)


def _set_new_class(kind: type, state: Any) -> None:
    """Fill a class, unless it is this process's own and has been found again."""
    attributes, _ = state
    body = attributes.keys() - {"__module__", "__doc__", "_abc_impl"}
    if issubclass(kind, enum.Enum) or not body or not body <= vars(kind).keys():
        _class_setstate(kind, state)


def _leaf_spec() -> Any:
    """Make what Lightning's loaders keep of a single loader; torch deprecates making it by hand."""
    from torch.utils._pytree import tree_structure  # private, as Lightning's own use of it

    return tree_structure(0)


class _Gone:
    """What a dead reference has referred to."""


def _reference(referent: Any) -> Any:
    return weakref.ref(_Gone() if referent is None else referent)


def _shares_its_state(obj: Any) -> bool:
    """Tell whether all instances have one ``__dict__``: Alex Martelli's Borg, as in accelerate."""
    shared = getattr(type(obj), "_shared_state", None)
    return shared is not None and getattr(obj, "__dict__", None) is shared


def _one_of_many(kind: Any) -> Any:
    """Make one more instance that shares its class's state with all others."""
    instance = kind.__new__(kind)
    instance.__dict__ = kind._shared_state
    return instance


def _fill_cell(cell: types.CellType, content: tuple[Any, ...]) -> None:
    if content:
        (cell.cell_contents,) = content


def _load_mapped_file(
    filename: str,
    mode: Any,
    offset: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> Any:
    lowest = offset + sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True))
    reach = sum(abs((n - 1) * s) for n, s in zip(shape, strides, strict=True)) + dtype.itemsize
    whole = np.memmap(filename, np.uint8, mode, lowest, (reach,))
    array: Any = np.ndarray(shape, dtype, whole, offset - lowest, strides).view(np.memmap)
    array.__array_finalize__(whole)  # it is a view of the same file
    return array


def _rebuild_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    return error
