"""Optimizer steps on this rank's parts, for optimizers that update elements independently.

A trial finds out whether an optimizer does: one copy of it steps on a small parameter, and two more
on one half of it each, as two ranks would.  If the results agree, the optimizer steps on this
rank's parts as if they were plain parameters, in any of its implementations (foreach, fused).
Any other optimizer (LBFGS, Muon, one with a trust ratio) steps on the sharded parameters, which
look like full tensors to it.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nbmgpu.environment import random_state
from nbmgpu.strategies.per_parameter import nonzero_learning_rate, shapes_to_try, unhooked_step
from nbmgpu.strategies.saved_state import copied_state

from .full_tensor_view import FullTensorView, ShardedParameter, full_view_of
from .local_parameters import LocalGroup, LocalParameter
from .param_state import ParamState
from .tensor_shard import TensorShard

DEFAULT_SHAPE = (4, 3)
"""A shape that is tried for every optimizer; its halves have several elements."""

GRADIENT_SCALES = (1.0, 1e-4, 100.0)
"""Magnitudes of the gradients in a trial: some optimizers clip large ones."""

KNOWN_ATTRIBUTES = frozenset({
    "defaults", "state", "param_groups", "_zero_grad_profile_name",
    "_warned_capturable_if_run_uncaptured", "_patch_step_function",
    "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks",
    "_need_device_dtype_check_for_fused", "_step_supports_amp_scaling", "step", "_opt_called",
    "grad_scale", "found_inf", "hook_for_profile", "_hook_for_profile",
})  # fmt: skip
"""Attributes of torch's optimizers; an optimizer with other objects as attributes is not tried."""


def elementwise_state_names(optimizer: Optimizer) -> frozenset[str] | None:
    """Find out by a trial whether ``optimizer`` updates each element independently.

    Returns:
        The names of states with a value for each element; None if it does not.
    """
    simple = (bool, int, float, str, type(None))
    extra = {k: v for k, v in vars(optimizer).items() if k not in KNOWN_ATTRIBUTES}
    if not all(isinstance(v, simple) for v in extra.values()):
        return None
    if _has_hooks(optimizer):
        return None
    try:
        with random_state.kept():
            keys = [_run_trial(optimizer, dim) for dim in _split_dims(optimizer)]
            return None if None in keys else frozenset().union(*filter(None, keys))
    except Exception:  # the optimizer's own code, with parameters that it may not expect
        return None


def _has_hooks(optimizer: Optimizer) -> bool:
    hooks = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
    return any(vars(optimizer).get(name) for name in hooks)


def _split_dims(optimizer: Optimizer) -> list[int]:
    """Return the dimensions along which the optimizer's parameters are split."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return sorted(
        {dim for p in parameters if isinstance(p, ShardedParameter) for dim in p._shard.layout.dims}
    )


def _run_trial(optimizer: Optimizer, dim: int) -> frozenset[str] | None:
    """Try parameters that are split along ``dim``; return as ``elementwise_state_names``."""
    generator = torch.Generator().manual_seed(0)
    keys: set[str] = set()
    for group, shape in _trials(optimizer, dim):
        start = torch.randn(shape, generator=generator)
        full, halves = (
            nn.Parameter(start.clone()),
            [nn.Parameter(h.clone()) for h in start.chunk(2, dim)],
        )
        copies = [_trial_copy(optimizer, group, [p]) for p in (full, *halves)]
        for scale in GRADIENT_SCALES:
            grad = torch.randn(shape, generator=generator) * scale
            full.grad = grad.clone()
            for half, part in zip(halves, grad.chunk(2, dim), strict=True):
                half.grad = part.clone()
            for copied in copies:
                unhooked_step(optimizer)(copied)
        if not torch.allclose(full, torch.cat([h.detach() for h in halves], dim), 1e-6, 1e-8):
            return None
        for key, value in copies[0].state[full].items():
            if isinstance(value, Tensor) and value.shape == full.shape:
                keys.add(key)
            elif isinstance(value, Tensor) and value.dim():
                return None
    return frozenset(keys)


def _trials(optimizer: Optimizer, dim: int) -> Iterator[tuple[dict[str, Any], tuple[int, ...]]]:
    """Yield each group with the shapes to try: those of its parameters that ``dim`` can split."""
    tried: set[tuple[str, tuple[int, ...]]] = set()
    for group in optimizer.param_groups:
        options = repr({k: v for k, v in group.items() if k != "params"})
        for shape in (DEFAULT_SHAPE, *shapes_to_try(group["params"])):
            if dim < len(shape) and shape[dim] > 1 and (options, shape) not in tried:
                tried.add((options, shape))
                yield group, shape


def _trial_copy(optimizer: Optimizer, group: dict[str, Any], parameters: list[nn.Parameter]) -> Any:
    """Return an optimizer of the same class and options for ``parameters`` on the CPU."""
    copied = type(optimizer).__new__(type(optimizer))
    copied.__dict__.update({k: v for k, v in vars(optimizer).items() if k not in ("step", "state")})
    options = {k: _to_cpu(v) for k, v in group.items() if k != "params"}
    options.update({k: False for k in ("capturable", "fused") if options.get(k)})
    options.update(nonzero_learning_rate(options))
    copied.param_groups = [options | {"params": parameters}]
    copied.state = collections.defaultdict(dict)
    return copied


def _to_cpu(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value


class LocalStep:
    """Runs the steps of one optimizer on this rank's parts."""

    optimizer: Optimizer

    def __init__(self, keys: frozenset[str]) -> None:
        """Shard the states under ``keys``, which have a value for each element."""
        self.keys = keys
        self._groups: list[LocalGroup] = []
        self._locals: dict[int, LocalParameter] = {}

    def step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        """Run ``plain()``, a step of ``optimizer``, with local parts instead of parameters."""
        self.optimizer = optimizer
        plain = self._wrap_closure(plain)
        self._swap_in()
        try:
            return plain()
        finally:
            self._swap_out()
            del self.optimizer  # do not keep the optimizer alive

    def load(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load a state dict of full tensors, of which this rank keeps its parts.

        ``load_state_dict`` would move the full tensors to the device first.
        """
        saved = (key for group in state["param_groups"] for key in group["params"])
        own = (p for group in optimizer.param_groups for p in group["params"])
        states = dict(state["state"])
        for key, parameter in zip(saved, own, strict=False):
            if key in states and isinstance(parameter, ShardedParameter):
                values = {n: states[key][n] for n in states[key].keys() & self.keys}
                parts = {n: LoadedPart.of(v, parameter._shard) for n, v in values.items()}
                states[key] = states[key] | parts
        optimizer.load_state_dict(copied_state(state | {"state": states}))
        for values in optimizer.state.values():
            for name, value in values.items():
                if isinstance(value, LoadedPart):
                    values[name] = value.view

    def _wrap_closure(self, plain: Any) -> Callable[[], Any]:
        """Restore the parameters while a closure runs, which calls the model."""
        if not isinstance(plain, functools.partial):
            return plain  # type: ignore[no-any-return]

        def wrap(value: Any) -> Any:
            if not callable(value) or isinstance(value, Optimizer):
                return value

            @functools.wraps(value)
            def closure(*args: Any, **kwargs: Any) -> Any:
                self._swap_out()
                try:
                    return value(*args, **kwargs)
                finally:
                    self._swap_in()

            return closure

        args = [wrap(a) for a in plain.args]
        kwargs = {k: wrap(v) for k, v in plain.keywords.items()}
        return functools.partial(plain.func, *args, **kwargs)

    def _swap_in(self) -> None:
        """Replace parameters, gradients and states of the optimizer by local parts."""
        lists = [group["params"] for group in self.optimizer.param_groups]
        if not self._are_current(lists):
            self._locals = {}
            self._groups = [LocalGroup(parameters, self._locals) for parameters in lists]
        for local in self._locals.values():
            local.take_grad()
        for group in self._groups:
            group.swap_in()
        if self.optimizer.state:
            self._replace_states(self._locals, _to_part)

    def _are_current(self, lists: list[list[Any]]) -> bool:
        known = self._groups
        same = len(known) == len(lists) and all(map(LocalGroup.is_current, known, lists))
        return same and all(local.is_current() for local in self._locals.values())

    def _swap_out(self) -> None:
        """Restore the parameters, and make the states full tensor views."""
        for group in self._groups:
            group.swap_out()
        locals_ = self._locals.values()
        if self.optimizer.state:
            self._replace_states({id(local.local): local for local in locals_}, _to_view)
        changed = set()
        for local in locals_:
            local.copy_back()
            changed.add(local.param_state.shard.on_change)
        for on_change in changed:
            on_change()

    def _replace_states(
        self, by_key: dict[int, LocalParameter], convert: Callable[[Any, ParamState], Any]
    ) -> None:
        """Convert states of parameters that are swapped, and give them the other key."""
        states = [*self.optimizer.state.items()]
        self.optimizer.state.clear()
        for key, state in states:
            found = by_key.get(id(key))
            if found is not None and isinstance(state, dict):
                for name in state.keys() & self.keys:
                    state[name] = convert(state[name], found.param_state)
            self.optimizer.state[key if found is None else found.other(key)] = state


@dataclass(frozen=True)
class LoadedPart:
    """Stands for this rank's part of a state while it is loaded: no tensor, so it is left alone."""

    view: Tensor

    @classmethod
    def of(cls, full: Tensor, shard: TensorShard) -> LoadedPart:
        """Copy the part of ``full``, a state of the parameter that has ``shard``."""
        local = shard.local
        dtype = local.dtype if local.is_floating_point() else full.dtype
        part = shard.layout.part_of(full).to(local.device, dtype, copy=True).contiguous()
        return cls(full_view_of(TensorShard(part, shard.layout, shard.device)))


def _to_part(value: Any, param_state: ParamState) -> Any:
    shard = param_state.shard
    if isinstance(value, FullTensorView):
        return value._shard.local
    if isinstance(value, Tensor) and value.shape == shard.shape:
        part: Any = shard.layout.part_of(value).to(shard.local.device, copy=True).contiguous()
        part._view = full_view_of(TensorShard(part, shard.layout, shard.device))
        part._view._shard.original = value
        return part
    return value


def _to_view(value: Any, param_state: ParamState) -> Any:
    if isinstance(value, Tensor) and value.shape == param_state.shard.local.shape:
        kept = getattr(value, "_view", None)
        if kept is None:
            kept = full_view_of(TensorShard(value, param_state.shard.layout, param_state.device))
            value._view = kept  # type: ignore[attr-defined]
        return kept
    return value
