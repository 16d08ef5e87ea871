"""Types whose own way to be pickled loses something, and what is done about it."""

from __future__ import annotations

import copyreg
import enum
import functools
import importlib
import io
import pickle
import sys
import types
import typing
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cloudpickle.cloudpickle import _class_setstate, _should_pickle_by_reference

from nbmgpu.environment import tracker_run


def is_by_value(obj: Any) -> bool:
    """Tell whether a class or function is the notebook's own, not a module's."""
    return not _should_pickle_by_reference(obj)


def reduce_class_with_slots(reduced: Any) -> Any:
    """Make slots as slots again, which cloudpickle leaves out."""
    make, (*names, body, number, extra), (attributes, slots), *rest, _ = reduced
    named_tuple = typing.NamedTuple in attributes.get("__orig_bases__", ())  # makes its own
    if "__slots__" in attributes and not named_tuple:
        attributes.pop("__slotnames__", None)
        body = {**body, "__slots__": attributes.pop("__slots__")}
    return make, (*names, body, number, extra), (attributes, slots), *rest, _set_new_class


@dataclass(frozen=True)
class Reducer:
    """What is done about types of a kind.

    ``reduce`` takes an object of such a type, and returns None if its own way will do.
    """

    applies_to: Callable[[type], bool]
    reduce: Callable[[Any], Any]


def has_reducer(kind: type) -> bool:
    """Tell whether ``custom_reduce`` may have something to say of an object of type ``kind``."""
    return any(reducer.applies_to(kind) for reducer in _reducers())


def custom_reduce(obj: Any) -> Any:
    """Reduce types whose own way loses something; return None for all others."""
    kind = type(obj)
    found = (reducer.reduce(obj) for reducer in _reducers() if reducer.applies_to(kind))
    return next((reduced for reduced in found if reduced is not None), None)


@functools.cache
def _reducers() -> tuple[Reducer, ...]:
    """Return all there are; torch is imported for them."""
    import torch.utils.data

    return (
        Reducer(_subclass_of(BaseException), _reduce_exception),
        Reducer(_subclass_of(types.CellType), _reduce_cell),
        Reducer(_subclass_of(functools._lru_cache_wrapper), _reduce_cached),
        Reducer(_subclass_of(functools.cached_property), _reduce_cached_property),
        Reducer(
            _subclass_of(weakref.ReferenceType), lambda reference: (_reference, (reference(),))
        ),
        Reducer(_is_stream, _reduce_stream),
        Reducer(_subclass_of(io.TextIOWrapper), _refuse_file),
        Reducer(lambda kind: hasattr(kind, "_shared_state"), _reduce_shared_state),
        Reducer(_named("torch.utils._pytree", "LeafSpec"), lambda _: (_leaf_spec, ())),
        Reducer(_named("accelerate", "ConvertOutputsToFp32"), _reduce_conversion),
        Reducer(_named("wandb.sdk.wandb_run", "Run"), _reduce_run),
        Reducer(_named("wandb.sdk.lib", "NoopRun"), _reduce_run),
        Reducer(_named("wandb.sdk", "Summary"), _reduce_run_attribute),
        Reducer(_named("wandb.sdk", "SummaryDisabled"), _reduce_run_attribute),
        Reducer(_named("wandb.sdk", "Config"), _reduce_config),
        Reducer(_named("lightning", "WandbLogger"), _reduce_logger),
        Reducer(_named("pytorch_lightning", "WandbLogger"), _reduce_logger),
        Reducer(_subclass_of(torch.utils.data.DataLoader), _reduce_loader),
        Reducer(_subclass_of(torch.optim.Optimizer), _reduce_optimizer),
        Reducer(_subclass_of(torch.nn.Module), _reduce_module),
        Reducer(_pandas_type("Block"), _reduce_block),
        Reducer(_pandas_type("Index"), _reduce_index),
        Reducer(_pandas_type("BlockValuesRefs"), lambda refs: (_refs, (refs.has_reference(),))),
        Reducer(_pandas_type("SingleBlockManager"), _reduce_series),
    )


def _subclass_of(base: type) -> Callable[[type], bool]:
    return lambda kind: issubclass(kind, base)


def _named(package: str, name: str) -> Callable[[type], bool]:
    """Know a type of a library that need not be here by its name."""
    return lambda kind: kind.__name__ == name and kind.__module__.startswith(package)


def _pandas_type(base: str) -> Callable[[type], bool]:
    """Know pandas' types that are a ``base``, or made of one."""
    return lambda kind: any(
        k.__name__ == base and k.__module__.partition(".")[0] == "pandas" for k in kind.__mro__
    )


def _is_stream(kind: type) -> bool:
    return kind is type(sys.stdout) or kind is type(sys.stderr)


def _reduce_exception(error: BaseException) -> Any:
    kind = type(error)
    own: Any = kind.__init__
    if kind.__reduce__ is BaseException.__reduce__ and isinstance(own, types.FunctionType):
        return _rebuild_exception, (kind, error.args), dict(error.__dict__)  # not by ``args``
    return None


def _reduce_cell(cell: types.CellType) -> Any:
    return types.CellType, (), cell_content(cell), None, None, _fill_cell


def _reduce_cached(function: Any) -> Any:
    """Take along what is cached by ``functools``, which its own way looks for by its name."""
    if not is_by_value(function.__wrapped__):
        return None
    given = function.cache_parameters()
    own = {k: v for k, v in vars(function).items() if k not in CACHED_FUNCTION_ATTRIBUTES}
    return _cached, (function.__wrapped__, given["maxsize"], given["typed"]), own or None


def _reduce_cached_property(cached: Any) -> Any:
    return _cached_property, (cached.func, cached.attrname)  # before Python 3.12 it has a lock


def _reduce_stream(stream: Any) -> Any:
    names = [name for name in ("stdout", "stderr") if getattr(sys, name) is stream]
    return (_stream, (names[0],)) if names else None


def _refuse_file(_: io.TextIOWrapper) -> Any:
    raise pickle.PicklingError("an open file belongs to the process that has opened it")


def _reduce_shared_state(obj: Any) -> Any:
    if not _shares_its_state(obj):
        return None
    return _shared_state_instance, (type(obj),), dict(obj.__reduce_ex__(4)[2])


def _reduce_conversion(conversion: Any) -> Any:
    return type(conversion), (conversion.model_forward,)  # its own way is to refuse


def _reduce_run_attribute(obj: Any) -> Any:
    name = tracker_run.name_of(obj)
    return (getattr, (sys.modules["wandb"], name)) if name else None


def _reduce_run(run: Any) -> Any:
    """Let the notebook's run stand for itself, and one that is over, or will be, say what it was.

    Any other is found by its id, as wandb has it.
    """
    state = vars(run)
    over = state.get("_is_finished") or any(run is begun for begun in tracker_run.started_in_rank)
    disabled = type(run).__name__ == "NoopRun"
    if tracker_run.name_of(run) or not (over or disabled):
        return _reduce_run_attribute(run)
    names = (*FINISHED_RUN_ATTRIBUTES, *(("summary", "_interface") if disabled else ()))
    kept = {name: state[name] for name in names if name in state}
    return _finished_run, (type(run), {**kept, "_attach_id": None, "_is_finished": True})


def _reduce_logger(logger: Any) -> Any:
    """Take no run along: its own way begins one to be able to; the process's is found."""
    state = {**vars(logger), "_experiment": None, "_attach_id": None}
    return copyreg.__newobj__, (type(logger),), state  # type: ignore[attr-defined]


def _reduce_config(config: Any) -> Any:
    if name := tracker_run.name_of(config):
        return getattr, (sys.modules["wandb"], name)
    return _config, (type(config), dict(config))


def _reduce_loader(loader: Any) -> Any:
    if loader._iterator is None:
        return None
    function, args, state, *rest = loader.__reduce_ex__(4)
    return function, args, {**state, "_iterator": None}, *rest  # its workers stay here


def _reduce_optimizer(optimizer: Any) -> Any:
    if not _has_torch_getstate(optimizer):
        return None
    state = {k: v for k, v in optimizer.__dict__.items() if k not in REBUILT_OPTIMIZER_ATTRIBUTES}
    return copyreg.__newobj__, (type(optimizer),), state  # type: ignore[attr-defined]


def _reduce_module(module: Any) -> Any:
    from torch.nn.utils.parametrize import is_parametrized

    if not is_parametrized(module):
        return None
    return copyreg.__newobj__, (type(module),), dict(module.__dict__)  # type: ignore[attr-defined]


def _reduce_series(manager: Any) -> Any:
    return type(manager), (manager.blocks[0], manager.axes[0])  # its own way takes blocks apart


def _reduce_block(block: Any) -> Any:
    """Keep pandas' knowledge of what shares memory, on which its copy-on-write relies.

    Its own way drops it, for it copies the memory; here memory stays shared.
    """
    if getattr(block, "refs", None) is None:  # pandas 1
        return None
    make, args, *_ = block.__reduce__()
    return _block, (make, args, block.refs)


def _reduce_index(index: Any) -> Any:
    refs = getattr(index, "_references", None)
    if refs is None or type(index).__name__ == "RangeIndex":  # which has no memory
        return None
    make, args, *_ = index.__reduce__()
    return _index, (make, args, refs)


REBUILT_OPTIMIZER_ATTRIBUTES = ("step", "_zero_grad_profile_name")
"""Attributes that a scheduler or ``__init__`` puts on an optimizer and can put there again."""


def _has_torch_getstate(optimizer: Any) -> bool:
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


def _stream(name: str) -> Any:
    return getattr(sys, name)


CACHED_FUNCTION_ATTRIBUTES = {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "cache_parameters"}
"""Attributes that ``functools`` gives to a function that it caches."""


def _cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _cached_property(function: Any, name: str | None) -> Any:
    cached: Any = functools.cached_property(function)
    cached.attrname = name
    return cached


def _set_new_class(kind: type, state: Any) -> None:
    """Fill a class, unless it is this process's own and has been found again."""
    attributes, _ = state
    body = attributes.keys() - {"__module__", "__doc__", "_abc_impl"}
    if issubclass(kind, enum.Enum) or not body or not body <= vars(kind).keys():
        _class_setstate(kind, state)


def _block(make: Callable[..., Any], args: tuple[Any, ...], refs: Any) -> Any:
    block = make(*args)
    block.refs = refs
    refs.add_reference(block)
    return block


def _index(make: Callable[..., Any], args: tuple[Any, ...], refs: Any) -> Any:
    index = make(*args)
    index._references = refs
    refs.add_index_reference(index)
    return index


class _OtherReferences:
    """Stands for all that shares memory in the notebook and has not been sent."""


_other_references = _OtherReferences()


def _refs(shared: bool) -> Any:
    refs = importlib.import_module("pandas._libs.internals").BlockValuesRefs()
    if shared:  # so that what is written is a copy, and does not come home into the others
        refs.add_index_reference(_other_references)
    return refs


def _leaf_spec() -> Any:
    """Make what Lightning's loaders keep of a single loader; torch deprecates making it by hand."""
    from torch.utils._pytree import tree_structure  # private, as Lightning's own use of it

    return tree_structure(0)


FINISHED_RUN_ATTRIBUTES = (
    "_settings",
    "_config",
    "_start_time",
    "_step",
    "_starting_step",
    "_init_pid",
)
"""What a run needs to say what it is called."""


def _finished_run(kind: Any, state: dict[str, Any]) -> Any:
    run = kind.__new__(kind)
    run.__dict__.update(state)
    return run


def _config(kind: Any, values: dict[str, Any]) -> Any:
    config = kind()
    config.update(values)
    return config


class _DeadReferent:
    """What a dead reference has referred to."""


def _reference(referent: Any) -> Any:
    return weakref.ref(_DeadReferent() if referent is None else referent)


def _shares_its_state(obj: Any) -> bool:
    """Tell whether all instances have one ``__dict__``: Alex Martelli's Borg, as in accelerate."""
    shared = getattr(type(obj), "_shared_state", None)
    return shared is not None and getattr(obj, "__dict__", None) is shared


def _shared_state_instance(kind: Any) -> Any:
    """Make one more instance that shares its class's state with all others."""
    instance = kind.__new__(kind)
    instance.__dict__ = kind._shared_state
    return instance


def _fill_cell(cell: types.CellType, content: tuple[Any, ...]) -> None:
    if content:
        (cell.cell_contents,) = content


def _rebuild_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    return error
