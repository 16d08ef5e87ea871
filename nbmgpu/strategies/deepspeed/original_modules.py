"""The user's modules and parameters as the notebook knows them, to be put back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

ON_MODULES = {
    "_external_params", "_original_parameters", "all_parameters", "applied_pre_backward_ref_cnt",
    "post_bwd_fn", "pre_bwd_fn", "to_empty",
}  # fmt: skip
"""Attributes that stage 3 leaves on modules, besides those that begin with ds_."""


class Outer:
    """A parameter as the notebook knows it, to be put back."""

    def __init__(self, parameter: nn.Parameter) -> None:
        """Remember ``parameter``; on a GPU rank 0 keeps its values in the host's memory."""
        self.attributes = dict(vars(parameter))
        self.dtype, self.device, self.shape = parameter.dtype, parameter.device, parameter.shape
        self.trained = parameter.requires_grad
        self.memory: Tensor | None = parameter.data
        if self.device.type != "cpu":
            self.memory = parameter.data.cpu() if dist.get_rank() == 0 else None

    def back_to(self, parameter: nn.Parameter, values: Tensor | None) -> None:
        """Let ``parameter`` be as it was, with ``values``, or with those it had."""
        vars(parameter).clear()
        vars(parameter).update(self.attributes)
        memory = self.memory
        if memory is None:
            memory = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        if values is None:
            parameter.data = memory.to(self.device)
        elif self.device.type == "cpu":
            memory.copy_(values)  # where the notebook has it, and whoever shares it
            parameter.data = memory
        else:
            parameter.data = values.to(self.device, self.dtype)


class Surface:
    """What DeepSpeed adds to modules and parameters, and takes from them."""

    def __init__(self, modules: list[nn.Module]) -> None:
        """Remember ``modules``, those inside them, and their parameters."""
        self.modules = [m for root in modules for m in root.modules()]
        self.held = list({id(p): p for m in modules for p in m.parameters()}.values())
        self.outer = {id(p): Outer(p) for p in self.held}
        self._attributes = {id(m): set(vars(m)) for m in self.modules}
        self._modes = [m.training for m in self.modules]
        self._before = {id(m): _hooks_of(m) for m in self.modules}
        self._added: dict[int, dict[str, set[Any]]] = {}

    def note_additions(self) -> None:
        """Note the hooks that DeepSpeed has put on modules, which are to train as before."""
        for module, mode in zip(self.modules, self._modes, strict=True):
            module.training = mode
            before = self._before[id(module)]
            self._added[id(module)] = {
                name: keys - before[name] for name, keys in _hooks_of(module).items()
            }

    def restore(self, weights: dict[int, Tensor]) -> None:
        """Let everything be as it was; parameters get ``weights``, by their id."""
        for parameter in self.held:
            parameter.__class__ = nn.Parameter
            self.outer[id(parameter)].back_to(parameter, weights.get(id(parameter)))
        for module in self.modules:
            if type(module._parameters) is not dict:
                module._parameters = dict(module._parameters.items())
            for name in set(vars(module)) - self._attributes[id(module)]:
                if name in ON_MODULES or name.startswith(("ds_", "_ds_")):
                    del vars(module)[name]
            for name, keys in self._added.get(id(module), {}).items():
                for key in keys:
                    vars(module)[name].pop(key, None)


def _hooks_of(module: nn.Module) -> dict[str, set[Any]]:
    """Return the keys of a module's hooks, by the name of their dictionary."""
    named = {n: v for n, v in vars(module).items() if "hooks" in n and isinstance(v, dict)}
    return {name: set(hooks) for name, hooks in named.items()}
