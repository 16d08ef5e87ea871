"""Pickles the state of a cell: states of models and optimizers, and values of variables.

Tensors are not in the pickles.  Each rank has about the same bytes of them to write, and no rank
ever has all: a tensor that is sharded over ranks is gathered for the one that writes it, and
dropped before the next one is gathered.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from nbmgpu.runs.checkpoint_state import PATH, TENSOR
from nbmgpu.serialization.code_objects import dispatch_table
from nbmgpu.strategies.base import Strategy
from nbmgpu.strategies.saved_state import copied_state
from nbmgpu.strategies.sharding.full_tensor_view import FullTensorView, full_tensor_of

from .module_attributes import ATTRIBUTES, module_attributes
from .references import find_references, is_reference, is_stateful
from .sizes import tensor_bytes

MIN_BYTES = 1024
"""Smaller tensors stay in the pickles."""


@dataclass(frozen=True)
class CapturedState:
    """The state of a cell between two iterations, and what this rank writes of its tensors.

    Attributes:
        states: a pickle of all state dicts by the path of their object.
        values: a pickle of the variables by name; empty on ranks other than 0.
        num_states: number of tensors of ``states``, which come before those of ``values``.
        num_tensors: number of all tensors.
        nbytes: size of all tensors.
        tensors: those that this rank writes, by number.
        left_out: names of variables that cannot be pickled.
    """

    states: bytes
    values: bytes
    num_states: int
    num_tensors: int
    nbytes: int
    tensors: dict[int, torch.Tensor]
    left_out: list[str]


def state_dicts(references: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of stateful objects, without those of modules inside of modules.

    All ranks call it together: it gathers what is sharded.
    """
    modules = [value for value in references.values() if isinstance(value, torch.nn.Module)]
    owned = {id(parameter) for module in modules for parameter in module.parameters()}
    inside: set[int] = set()
    states: dict[str, Any] = {}
    for path, value in references.items():
        if isinstance(value, torch.nn.Module):
            if id(value) in inside:
                continue
            inside.update(id(module) for module in value.modules())
        if is_stateful(value):
            states[path] = value.state_dict()
        elif isinstance(value, torch.Generator):
            states[path] = value.get_state()
        elif isinstance(value, torch.nn.Parameter) and id(value) not in owned:
            states[path] = value.detach()
    return states


def load_states(
    states: Mapping[str, Any], references: Mapping[str, Any], strategy: Strategy
) -> None:
    """Set the states of objects, on all ranks together.

    Args:
        states: by path; their tensors are mapped from files, and what is kept of them is copied.
        references: the objects by path.
        strategy: shards the states of optimizers.

    Raises:
        KeyError: there is no object with one of the paths.
    """
    for path, state in states.items():
        value = references[path]
        if isinstance(value, torch.Generator):
            value.set_state(state)
        elif isinstance(value, torch.Tensor):
            with torch.no_grad():
                value.copy_(state)
        elif isinstance(value, torch.nn.Module):
            value.load_state_dict(state)
        elif isinstance(value, torch.optim.Optimizer):
            strategy.load_optimizer_state(value, state)
        else:
            value.load_state_dict(copied_state(state))


def capture(
    variables: Mapping[str, Any], rank: int, world_size: int, group: ProcessGroup | None
) -> CapturedState:
    """Capture the state of a cell; all ranks call it together.

    Args:
        variables: all variables by name, of the cell and of functions.
        rank: this rank; rank 0 writes the tensors of variables, as they are there.
        world_size: number of ranks.
        group: all ranks, with gloo.
    """
    references = find_references(variables)
    tensors: list[torch.Tensor] = []
    states = _dumps(state_dicts(references), {}, tensors)
    num_states = len(tensors)
    paths = {id(value): path for path, value in references.items()}
    kept = {name: v for name, v in variables.items() if not is_reference(v)}
    left_out = [name for name, value in kept.items() if not _is_picklable(value, paths)]
    kept = {name: value for name, value in kept.items() if name not in left_out}
    kept[ATTRIBUTES] = module_attributes(references, lambda each: _is_picklable(each, paths))
    values = _dumps(kept, paths, tensors)
    sizes = [tensor_bytes(tensor) for tensor in tensors]
    owners = _owners(tensors[:num_states], world_size, group)
    writers = _writers(sizes[:num_states], world_size, owners) + [0] * (len(tensors) - num_states)
    own = {number for number, writer in enumerate(writers) if writer == rank}
    return CapturedState(
        states=states,
        values=values if rank == 0 else b"",
        num_states=num_states,
        num_tensors=len(tensors),
        nbytes=sum(sizes),
        tensors=_gathered(tensors, own),
        left_out=left_out,
    )


def _owners(
    tensors: Sequence[torch.Tensor], world_size: int, group: ProcessGroup | None
) -> dict[int, int]:
    """Return the rank that has a tensor, by number, of those that some ranks have on ``meta``."""
    absent: list[Any] = [set()] * world_size
    own = {n for n, t in enumerate(tensors) if not isinstance(t, FullTensorView) and t.is_meta}
    dist.all_gather_object(absent, own, group)
    return {
        number: next((rank for rank, each in enumerate(absent) if number not in each), 0)
        for number in set().union(*absent)
    }


def _writers(sizes: Sequence[int], world_size: int, owners: Mapping[int, int]) -> list[int]:
    """Return the rank that writes each tensor: about the same bytes for each rank.

    Of ``owners``, it is the one that has it.
    """
    loads, writers = [0] * world_size, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda n: (n not in owners, -sizes[n])):
        writers[number] = rank = owners.get(number, loads.index(min(loads)))
        loads[rank] += sizes[number]
    return writers


def _gathered(tensors: Sequence[torch.Tensor], own: Collection[int]) -> dict[int, torch.Tensor]:
    """Return the ``own`` tensors, those that are sharded in host memory; collective."""
    gathered: dict[int, torch.Tensor] = {}
    for number, tensor in enumerate(tensors):
        if isinstance(tensor, FullTensorView):
            with torch.no_grad():
                full = full_tensor_of(tensor).detach().cpu()
        else:
            full = tensor
        if number in own:
            gathered[number] = full
    return gathered


def _is_picklable(value: Any, paths: Mapping[int, str]) -> bool:
    if isinstance(value, (str, int, float, torch.Tensor)):
        return True
    try:
        _dumps(value, paths, [])
    except Exception:  # of any library's own reducer
        return False
    return True


def _dumps(value: Any, paths: Mapping[int, str], tensors: list[torch.Tensor]) -> bytes:
    file = io.BytesIO()
    _StatePickler(file, paths, tensors).dump(value)
    return file.getvalue()


class _StatePickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(
        self, file: io.BytesIO, paths: Mapping[int, str], tensors: list[torch.Tensor]
    ) -> None:
        self.dispatch_table = dispatch_table()
        super().__init__(file, protocol=5)
        self._paths = paths
        self._tensors = tensors
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> tuple[str, Any] | None:
        if (path := self._paths.get(id(obj))) is not None:
            return PATH, path
        if not _is_separate(obj):
            return None
        with torch._C.DisableTorchFunctionSubclass():
            is_trained = obj.requires_grad and obj.is_leaf
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = len(self._tensors)
            tensor: Any = obj if isinstance(obj, FullTensorView) else obj.detach()
            self._tensors.append(tensor)
        return TENSOR, (self._numbers[id(obj)], is_trained)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and obj.requires_grad and not obj.is_leaf:
            return torch.Tensor.detach(obj).__reduce_ex__(5)
        return super().reducer_override(obj)


def _is_separate(obj: Any) -> bool:
    if isinstance(obj, FullTensorView):
        return True
    if type(obj) is not torch.Tensor or obj.layout is not torch.strided:
        return False
    return obj.numel() * obj.element_size() >= MIN_BYTES
