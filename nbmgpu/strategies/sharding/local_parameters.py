"""This rank's parts of sharded parameters, as plain parameters that an optimizer steps on."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, nn

from .full_tensor_view import ShardedParameter
from .param_state import ParamState


class LocalGroup:
    """The parameters of one group of an optimizer, with local ones in place of sharded ones.

    It serves for all steps, until the optimizer has other parameters, or more of them are sharded.
    """

    def __init__(self, parameters: list[Any], known: dict[int, LocalParameter]) -> None:
        """Find local parameters for those of ``parameters``, the optimizer's list.

        Args:
            parameters: the list, which may have a parameter twice.
            known: local parameters by ``id`` of the sharded one, to which new ones are added.
        """
        self._parameters = parameters
        self._originals = [*parameters]
        self._classes = [*map(type, parameters)]
        for parameter in parameters:
            if isinstance(parameter, ShardedParameter) and id(parameter) not in known:
                known[id(parameter)] = LocalParameter(parameter._param_state)
        self._replacements = [known[id(p)].local if id(p) in known else p for p in parameters]

    def is_current(self, parameters: list[Any]) -> bool:
        """Whether ``parameters`` are the same as before, and of the same classes."""
        same = parameters is self._parameters and len(parameters) == len(self._originals)
        same = same and all(map(operator.is_, parameters, self._originals))
        return same and all(map(operator.is_, map(type, parameters), self._classes))

    def swap_in(self) -> None:
        """Replace sharded parameters in the optimizer's list."""
        self._parameters[:] = self._replacements

    def swap_out(self) -> None:
        """Restore the optimizer's list."""
        self._parameters[:] = self._originals


class LocalParameter:
    """This rank's part of a parameter, as a plain parameter that an optimizer steps on.

    Attributes:
        param_state: of the sharded parameter.
        part: this rank's part.
        local: the parameter, which shares the memory of the part.
        pointer: the address of that memory.
        grad: the part's gradient, before the step.
    """

    def __init__(self, param_state: ParamState) -> None:
        """Make a parameter of the part that ``param_state`` has now."""
        self.param_state = param_state
        self.part = param_state.shard.local
        self.local = nn.Parameter(self.part.detach(), param_state.parameter.requires_grad)
        self.pointer = self.part.data_ptr()
        self.grad: Tensor | None = None

    def is_current(self) -> bool:
        """Whether the sharded parameter still has the same part, in the same place."""
        part = self.param_state.shard.local
        return part is self.part and part.data_ptr() == self.pointer

    def take_grad(self) -> None:
        """Give the local parameter the part's gradient."""
        self.local.grad = self.grad = self.param_state.local_grad()

    def other(self, key: Any) -> Any:
        """Return the sharded parameter for the local one, and the reverse."""
        return self.param_state.parameter if key is self.local else self.local

    def copy_back(self) -> None:
        """Copy changed parts and gradients back, also where the step has assigned new tensors."""
        local = self.local
        if local.data_ptr() != self.pointer:
            self.part.detach().copy_(local.detach())
            local.data = self.part.detach()
        before, grad = self.grad, local.grad
        if grad is None:
            self.param_state.set_local_grad(None)
        elif grad is not before and before is not None and grad.data_ptr() != before.data_ptr():
            before.copy_(grad)
        local.grad = self.grad = None
