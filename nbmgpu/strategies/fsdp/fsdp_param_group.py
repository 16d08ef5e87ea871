"""FSDP2's parameter groups, which register unsharded parameters for forward passes only."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp._fully_shard._fsdp_common import is_bw
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from .fsdp_param import CellFSDPParam, FSDPParamState


class CellFSDPParamGroup(FSDPParamGroup):
    """The parameters of one unit.

    Attributes:
        position: number of the group, the same on all ranks.
        reduced: positions of the groups that this backward pass has reduced, in order; shared by
            all groups.
        places: the parameters of a module, a name among them, and the state of that parameter.
        shows_unsharded: whether the unsharded parameters are registered on the modules; None before
            the first registration.
        shard_group: the ranks that hold the rows of one tensor; None for all ranks.
        replica_group: the ranks that hold the same rows; None if there are no replicas.
    """

    fsdp_params: list[CellFSDPParam]  # type: ignore[assignment]
    position: int
    reduced: list[int]
    places: list[tuple[dict[str, Any], str, FSDPParamState]]
    shows_unsharded: bool | None = None
    shard_group: ProcessGroup | None
    replica_group: ProcessGroup | None

    def _register_state_dict_hooks(self) -> None:
        pass  # the cell saves and loads full tensor views

    def pre_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Unshard, and register the unsharded parameters."""
        result = super().pre_forward(module, args, kwargs)
        self.register(unsharded=True)
        return result

    def post_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        """Register the cell's parameters again, also of a group that stays unsharded."""
        output = super().post_forward(module, input, output)
        if not is_bw():
            self.register(unsharded=False)
        return output

    def pre_backward(self, default_prefetch: bool, *unused: Any) -> None:
        """Unshard, and register the unsharded parameters for recomputation."""
        super().pre_backward(default_prefetch, *unused)
        if self.is_unsharded:
            self.register(unsharded=True)

    def post_backward(self, *unused: Any) -> None:
        """Record which parameters have a gradient, and reduce the gradients of all.

        Other ranks may have gradients of other parameters: those without one are zero.
        """
        if torch.is_grad_enabled():  # create_graph: unsharded parameters are needed once more
            return
        for param in self.fsdp_params:
            unsharded = getattr(param, "_unsharded_param", None)
            if unsharded is None:
                continue
            state = param.param_state
            assert state is not None
            if unsharded.grad is not None:
                state.has_grad = True
            elif unsharded.requires_grad:
                unsharded.grad = torch.zeros_like(unsharded)
                state.had_no_grad |= state.sharded_param().grad is None
        self.reduced.append(self.position)
        super().post_backward(*unused)

    def _to_sharded(self) -> None:
        super()._to_sharded()  # type: ignore[no-untyped-call]
        self.register(unsharded=False)

    def register(self, unsharded: bool) -> None:
        """Register the unsharded parameters on the modules, if there are any, or the cell's."""
        unsharded = unsharded and self.is_unsharded
        if unsharded == self.shows_unsharded:
            return
        self.shows_unsharded = unsharded
        for parameters, name, state in self.places:
            shown = state.parameter
            if unsharded:
                param: Any = state.unsharded_param()
                param.is_averaged = True
                # A split parameter looks full to the cell also while its part is unsharded.
                shown = param if state.split is None else shown
            parameters[name] = shown

    def are_registered(self) -> bool:
        """Whether modules have these parameters, and not replacements of the cell."""
        for parameters, name, state in self.places:
            current = parameters.get(name)
            if current is not state.parameter and (
                current is None or current is not state.unsharded_param()
            ):
                return False
        return True

    def reshard_stale(self) -> None:
        """Reshard after the rows have changed, so that they are gathered again."""
        if self.is_unsharded and not is_bw():
            self._to_sharded()
