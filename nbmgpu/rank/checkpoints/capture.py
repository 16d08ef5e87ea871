"""Pickles the state of a cell: states of models and optimizers, values of variables, random states.

Tensors are not in the pickles: ``tensors`` has those, and ``torch.distributed.checkpoint`` writes
them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

from nbmgpu.runs.checkpoint_state import PATH, TENSOR

from .module_attributes import ATTRIBUTES, module_attributes
from .references import find_references, is_reference, is_stateful

MIN_BYTES = 1024
"""Smaller tensors stay in the pickles."""


@dataclass(frozen=True)
class CapturedState:
    """The state of a cell between two iterations.

    Attributes:
        states: a pickle of all state dicts by the path of their object.
        values: a pickle of the variables by name; empty on ranks other than 0.
        tensors: what the pickles refer to.  Those of ``states`` come first, alike on all ranks.
        num_states: number of tensors of ``states``.
        left_out: names of variables that cannot be pickled.
    """

    states: bytes
    values: bytes
    tensors: list[torch.Tensor]
    num_states: int
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


def load_states(states: Mapping[str, Any], references: Mapping[str, Any]) -> None:
    """Set the states of objects, on all ranks together.

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
        else:
            value.load_state_dict(state)


def capture(variables: Mapping[str, Any], with_values: bool) -> CapturedState:
    """Capture the state of a cell.

    Args:
        variables: all variables by name, of the cell and of functions.
        with_values: whether this rank's variables are pickled, and not only what has a state dict.
    """
    references = find_references(variables)
    tensors: list[torch.Tensor] = []
    states = _dumps(state_dicts(references), {}, tensors)
    num_states = len(tensors)
    values, left_out = b"", []
    if with_values:
        paths = {id(value): path for path, value in references.items()}
        kept = {name: v for name, v in variables.items() if not is_reference(v)}
        left_out = [name for name, value in kept.items() if not _is_picklable(value, paths)]
        kept = {name: value for name, value in kept.items() if name not in left_out}
        kept[ATTRIBUTES] = module_attributes(references, lambda each: _is_picklable(each, paths))
        values = _dumps(kept, paths, tensors)
    return CapturedState(states, values, tensors, num_states, left_out)


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
        super().__init__(file, protocol=5)
        self._paths = paths
        self._tensors = tensors
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> tuple[str, Any] | None:
        if (path := self._paths.get(id(obj))) is not None:
            return PATH, path
        if not _is_separate(obj):
            return None
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = len(self._tensors)
            self._tensors.append(obj.detach())
        return TENSOR, (self._numbers[id(obj)], obj.requires_grad and obj.is_leaf)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and obj.requires_grad and not obj.is_leaf:
            return torch.Tensor.detach(obj).__reduce_ex__(5)
        return super().reducer_override(obj)


def _is_separate(obj: Any) -> bool:
    if type(obj) is not torch.Tensor or obj.layout is not torch.strided:
        return False
    return obj.numel() * obj.element_size() >= MIN_BYTES
