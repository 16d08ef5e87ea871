"""The user's modules and parameters as they were before DeepSpeed changed them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

MODULE_ATTRIBUTES = {
    "_external_params", "_original_parameters", "all_parameters", "applied_pre_backward_ref_cnt",
    "post_bwd_fn", "pre_bwd_fn", "to_empty",
}  # fmt: skip
"""Attributes that stage 3 sets on modules, besides those whose names start with ``ds_``."""


class OriginalParameter:
    """Attributes and memory of one parameter, to be restored."""

    def __init__(self, parameter: nn.Parameter) -> None:
        """Record ``parameter``; values on a GPU are copied to host memory, on rank 0 only."""
        self.attributes = dict(vars(parameter))
        self.dtype, self.device, self.shape = parameter.dtype, parameter.device, parameter.shape
        self.data: Tensor | None = parameter.data
        if self.device.type != "cpu":
            self.data = parameter.data.cpu() if dist.get_rank() == 0 else None

    def restore(self, parameter: nn.Parameter, values: Tensor | None) -> None:
        """Restore ``parameter`` with ``values``, or with the original ones for None."""
        vars(parameter).clear()
        vars(parameter).update(self.attributes)
        data = self.data
        if data is None:
            data = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        if values is None:
            parameter.data = data.to(self.device)
        elif self.device.type == "cpu":
            data.copy_(values)  # in place: other tensors of the notebook may share this memory
            parameter.data = data
        else:
            parameter.data = values.to(self.device, self.dtype)


class OriginalModules:
    """What DeepSpeed adds to modules and parameters, to be removed.

    Attributes:
        modules: all modules, outermost first.
        parameters: all their parameters, each once.
        by_parameter: their original state, by ``id``.
    """

    def __init__(self, roots: list[nn.Module]) -> None:
        """Record the modules in ``roots`` and their parameters."""
        self.modules = [m for root in roots for m in root.modules()]
        self.parameters = list({id(p): p for m in roots for p in m.parameters()}.values())
        self.by_parameter = {id(p): OriginalParameter(p) for p in self.parameters}
        self._attributes = {id(m): set(vars(m)) for m in self.modules}
        self._training = [m.training for m in self.modules]
        self._hooks = {id(m): _hook_keys(m) for m in self.modules}
        self._added_hooks: dict[int, dict[str, set[Any]]] = {}

    def dtype_of(self, parameter: nn.Parameter) -> torch.dtype:
        """Return the dtype that ``parameter`` has in the cell."""
        return self.by_parameter[id(parameter)].dtype

    def record_additions(self) -> None:
        """Record the hooks that DeepSpeed has added, and restore the modules' training modes."""
        for module, training in zip(self.modules, self._training, strict=True):
            module.training = training
            before = self._hooks[id(module)]
            self._added_hooks[id(module)] = {
                name: keys - before[name] for name, keys in _hook_keys(module).items()
            }

    def restore(self, weights: dict[int, Tensor]) -> None:
        """Restore everything; parameters get ``weights``, by ``id``, or their original values."""
        for parameter in self.parameters:
            parameter.__class__ = nn.Parameter
            key = id(parameter)
            self.by_parameter[key].restore(parameter, weights.get(key))
        for module in self.modules:
            if type(module._parameters) is not dict:
                module._parameters = dict(module._parameters.items())
            for name in set(vars(module)) - self._attributes[id(module)]:
                if name in MODULE_ATTRIBUTES or name.startswith(("ds_", "_ds_")):
                    del vars(module)[name]
            for name, keys in self._added_hooks.get(id(module), {}).items():
                for key_of_hook in keys:
                    vars(module)[name].pop(key_of_hook, None)


def _hook_keys(module: nn.Module) -> dict[str, set[Any]]:
    """Return the keys of a module's hooks, by the name of the dict that holds them."""
    named = {n: v for n, v in vars(module).items() if "hooks" in n and isinstance(v, dict)}
    return {name: set(hooks) for name, hooks in named.items()}
