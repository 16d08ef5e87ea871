"""FSDP2's parameter groups, which register unsharded parameters for forward passes only."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp._fully_shard._fsdp_common import is_bw
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from .fsdp_param import CellFSDPParam, FSDPParamState


class CellFSDPParamGroup(FSDPParamGroup):
    """The parameters of one unit.

    Attributes:
        on_reduction: called when FSDP2 reduces its gradients.
        param_states: the states of its parameters; lists of flags have the same order.
        in_graphs: those whose parameters graphs from before they were sharded lead to.
        unsharded: FSDP2's unsharded parameters, which it keeps from the first all-gather on.
        has_grad: whether FSDP2 got gradients in this backward pass.
        had_no_grad: indices of parameters whose ``.grad`` was None before this backward pass, as
            far as FSDP2 got no gradient of theirs on this rank.
        has_unreduced: whether a parameter has a gradient that FSDP2 has not reduced.
        has_stale_dtypes: whether the cell has frozen or unfrozen a parameter.
        places: the parameters of a module, a name among them, and the cell's parameter there.
        unsharded_places: the same with what forward passes use; empty before the first one.
        shows_unsharded: whether the unsharded parameters are registered on the modules; None before
            the first registration.
        shard_group: the ranks that hold the rows of one tensor; None for all ranks.
        replica_group: the ranks that hold the same rows; None if there are no replicas.
    """

    fsdp_params: list[CellFSDPParam]  # type: ignore[assignment]
    on_reduction: Callable[[], None]
    param_states: list[FSDPParamState]
    in_graphs: list[FSDPParamState]
    unsharded: list[Tensor]
    has_grad: list[bool]
    had_no_grad: set[int]
    has_unreduced = has_stale_dtypes = False
    places: list[tuple[dict[str, Any], str, Any]]
    unsharded_places: list[tuple[dict[str, Any], str, Any]]
    shows_unsharded: bool | None = None
    shard_group: ProcessGroup | None
    replica_group: ProcessGroup | None

    def hold(self, param_states: list[FSDPParamState]) -> None:
        """Register the cell's parameters, whose states these are, on the modules."""
        self.param_states = param_states
        self.in_graphs = [state for state in param_states if state.is_in_graph]
        self.unsharded, self.unsharded_places = [], []
        self.places = [
            (module._parameters, name, state.parameter)
            for state in param_states
            for module, name in state.fsdp_param.places()
        ]
        self.register(unsharded=False)
        self.begin_backward()

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
        found = [param.grad is not None for param in self.unsharded]
        if not all(found):
            self._add_zeros(found)
        if found:
            self.has_grad = [*map(operator.or_, self.has_grad, found)]
        self.on_reduction()
        super().post_backward(*unused)

    def _add_zeros(self, found: list[bool]) -> None:
        """Make zeros the gradients of parameters that have none."""
        for index, (param, has_grad) in enumerate(zip(self.unsharded, found, strict=True)):
            if param.requires_grad and not has_grad:
                param.grad = torch.zeros_like(param)
                if self.param_states[index].sharded_param().grad is None:
                    self.had_no_grad.add(index)

    def begin_backward(self) -> None:
        """Forget the gradients of the last pass, and see which parameters the cell has frozen."""
        self.has_grad = [False] * len(self.param_states)
        self.had_no_grad = set()
        if self.has_stale_dtypes:
            self.has_stale_dtypes = False
            self._init_mp_dtypes()

    def collect_unreduced(self) -> list[bool]:
        """Collect gradients that FSDP2 has not reduced; return which parameters have one.

        They arrived after its reduce-scatter, or at the cell's parameter itself, from a forward
        pass that ran before it was sharded.
        """
        for state in self.in_graphs:
            if (early := state.take_early_grad()) is not None:
                state.add_unreduced(early.detach())
        for state, param in zip(self.param_states, self.unsharded, strict=False):
            if param.grad is not None:
                state.add_unreduced(param.grad.detach())
                param.grad = None
        if not self.has_unreduced:
            return [False] * len(self.param_states)
        return [state.unreduced_grad is not None for state in self.param_states]

    def _to_sharded(self) -> None:
        super()._to_sharded()  # type: ignore[no-untyped-call]
        self.register(unsharded=False)

    def register(self, unsharded: bool) -> None:
        """Register the unsharded parameters on the modules, if there are any, or the cell's."""
        unsharded = unsharded and self.is_unsharded
        if unsharded == self.shows_unsharded:
            return
        self.shows_unsharded = unsharded
        if unsharded and not self.unsharded:
            self._find_unsharded()
        for parameters, name, shown in self.unsharded_places if unsharded else self.places:
            parameters[name] = shown

    def _find_unsharded(self) -> None:
        shown: dict[int, Any] = {}
        for state in self.param_states:
            param: Any = state.unsharded_param()
            param.is_averaged = True
            self.unsharded.append(param)
            # A split parameter looks full to the cell also while its part is unsharded.
            shown[id(state.parameter)] = param if state.split is None else state.parameter
        for parameters, name, own in self.places:
            self.unsharded_places.append((parameters, name, shown[id(own)]))

    def are_registered(self) -> bool:
        """Whether modules have these parameters, and not replacements of the cell."""
        places = self.unsharded_places if self.shows_unsharded else self.places
        return all(parameters.get(name) is shown for parameters, name, shown in places)

    def reshard_stale(self) -> None:
        """Reshard after the rows have changed, so that they are gathered again."""
        if self.is_unsharded and not is_bw():
            self._to_sharded()
