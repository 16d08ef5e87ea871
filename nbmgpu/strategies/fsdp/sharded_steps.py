"""Optimizer steps on a rank's rows alone, for what updates each element by itself.

Whether one does is found out by a trial: a twin of it takes steps on a small parameter,
whole, and two more on a half of it each, as two ranks would.  If they agree, the optimizer
steps on the rows of this rank as if they were plain parameters, whatever implementation
it has chosen (foreach, fused).
Any other optimizer (LBFGS, Muon, one with a trust ratio) steps on the sharded parameters
themselves, which look whole to it.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nbmgpu.strategies.per_parameter import shapes_to_try, unhooked_step, visible_rate

from .row_shards import Shard
from .sharded_tensors import Face, ShardedParameter, face_of
from .wrapper import Slot

TINY = (4, 3)
"""A shape that is always tried; its halves are two rows each."""

SCALES = (1.0, 1e-4, 100.0)
"""Sizes of the gradients of a trial: some optimizers clip what is large."""

KNOWN = frozenset({
    "defaults", "state", "param_groups", "_zero_grad_profile_name",
    "_warned_capturable_if_run_uncaptured", "_patch_step_function",
    "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks",
    "_need_device_dtype_check_for_fused", "_step_supports_amp_scaling", "step", "_opt_called",
    "grad_scale", "found_inf", "hook_for_profile", "_hook_for_profile",
})  # fmt: skip
"""Attributes of torch's optimizers; one with others may hold anything, and is not tried."""


def elementwise_states(optimizer: Optimizer) -> frozenset[str] | None:
    """Find out whether ``optimizer`` updates each element by itself.

    Returns:
        The keys of its states that have a number for each element; None if it does not.
    """
    simple = (bool, int, float, str, type(None))
    extra = {k: v for k, v in vars(optimizer).items() if k not in KNOWN}
    if not all(isinstance(v, simple) for v in extra.values()):
        return None
    if _has_hooks(optimizer):
        return None
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            return _try(optimizer)
    except Exception:
        return None


def _has_hooks(optimizer: Optimizer) -> bool:
    hooks = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
    return any(vars(optimizer).get(name) for name in hooks)


def _try(optimizer: Optimizer) -> frozenset[str] | None:
    generator = torch.Generator().manual_seed(0)
    keys: set[str] = set()
    for group, shape in _trials(optimizer):
        start = torch.randn(shape, generator=generator)
        whole, halves = (
            nn.Parameter(start.clone()),
            [nn.Parameter(h.clone()) for h in start.chunk(2)],
        )
        twins = [_twin(optimizer, group, [p]) for p in (whole, *halves)]
        for scale in SCALES:
            grad = torch.randn(shape, generator=generator) * scale
            whole.grad = grad.clone()
            for half, part in zip(halves, grad.chunk(2), strict=True):
                half.grad = part.clone()
            for twin in twins:
                unhooked_step(optimizer)(twin)
        if not torch.allclose(whole, torch.cat([h.detach() for h in halves]), 1e-6, 1e-8):
            return None
        for key, value in twins[0].state[whole].items():
            if isinstance(value, Tensor) and value.shape == whole.shape:
                keys.add(key)
            elif isinstance(value, Tensor) and value.dim():
                return None
    return frozenset(keys)


def _trials(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], tuple[int, ...]]]:
    """Yield each group with the shapes to try: its own parameters', if ranks can share them."""
    tried: set[tuple[str, tuple[int, ...]]] = set()
    for group in optimizer.param_groups:
        options = repr({k: v for k, v in group.items() if k != "params"})
        for shape in (TINY, *shapes_to_try(group["params"])):
            if shape and shape[0] > 1 and (options, shape) not in tried:
                tried.add((options, shape))
                yield group, shape


def _twin(optimizer: Optimizer, group: dict[str, Any], parameters: list[nn.Parameter]) -> Any:
    """Return an optimizer of the same class and options for ``parameters`` on the CPU."""
    twin = type(optimizer).__new__(type(optimizer))
    twin.__dict__.update({k: v for k, v in vars(optimizer).items() if k not in ("step", "state")})
    options = {k: _on_host(v) for k, v in group.items() if k != "params"}
    options.update({k: False for k in ("capturable", "fused") if options.get(k)})
    options.update(visible_rate(options))
    twin.param_groups = [options | {"params": parameters}]
    twin.state = collections.defaultdict(dict)
    return twin


def _on_host(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value


class LocalSteps:
    """Steps of one optimizer on the rows of this rank."""

    optimizer: Optimizer

    def __init__(self, keys: frozenset[str]) -> None:
        """Take the states under ``keys`` for sharded ones."""
        self.keys = keys
        self.locals: dict[int, nn.Parameter] = {}

    def step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        """Do ``plain()``, a step of ``optimizer``, with rows in place of parameters."""
        self.optimizer = optimizer
        plain = self._with_closure_outside(plain)
        self._enter()
        try:
            return plain()
        finally:
            self._leave()
            del self.optimizer  # it may die before its steps do

    def _with_closure_outside(self, plain: Any) -> Callable[[], Any]:
        """Let a closure, which runs the model, see the parameters themselves."""
        if not isinstance(plain, functools.partial):
            return plain  # type: ignore[no-any-return]

        def outside(value: Any) -> Any:
            if not callable(value) or isinstance(value, Optimizer):
                return value

            @functools.wraps(value)
            def closure(*args: Any, **kwargs: Any) -> Any:
                self._leave()
                try:
                    return value(*args, **kwargs)
                finally:
                    self._enter()

            return closure

        args = [outside(a) for a in plain.args]
        kwargs = {k: outside(v) for k, v in plain.keywords.items()}
        return functools.partial(plain.func, *args, **kwargs)

    def _slots(self) -> list[Slot]:
        parameters = (p for group in self.optimizer.param_groups for p in group["params"])
        return [cast(Slot, p._slot) for p in parameters if isinstance(p, ShardedParameter)]

    def _local(self, slot: Slot) -> nn.Parameter:
        """Return the rows of ``slot`` as a parameter, with their gradient."""
        key = id(slot.original)
        rows = slot.shard.local
        if key not in self.locals:
            self.locals[key] = nn.Parameter(rows.detach(), slot.original.requires_grad)
        local = self.locals[key]
        grad = slot.sharded().grad
        local.grad = None if grad is None else grad.to_local()
        return local

    def _enter(self) -> None:
        """Put rows in place of parameters, gradients and states."""
        optimizer = self.optimizer
        self.slots = self._slots()
        swap = {id(s.original): self._local(s) for s in self.slots}
        shards = {id(s.original): s.shard for s in self.slots}
        self.back = {id(swap[id(s.original)]): s for s in self.slots}
        for group in optimizer.param_groups:
            group["params"][:] = [swap.get(id(p), p) for p in group["params"]]
        states = list(optimizer.state.items())
        optimizer.state.clear()
        for key, state in states:
            if id(key) in shards and isinstance(state, dict):
                for name in state.keys() & self.keys:
                    state[name] = _to_rows(state[name], shards[id(key)])
            optimizer.state[swap.get(id(key), key)] = state

    def _leave(self) -> None:
        """Put parameters back, and let states look whole."""
        optimizer = self.optimizer
        for group in optimizer.param_groups:
            group["params"][:] = [self._original(p) for p in group["params"]]
        states = list(optimizer.state.items())
        optimizer.state.clear()
        for key, state in states:
            slot = self.back.get(id(key))
            if slot is not None and isinstance(state, dict):
                for name in state.keys() & self.keys:
                    state[name] = _to_face(state[name], slot)
            optimizer.state[self._original(key)] = state
        for local in list(self.locals.values()):
            if (slot := self.back.get(id(local))) is not None:
                self._take(local, slot)

    def _original(self, parameter: Any) -> Any:
        slot = self.back.get(id(parameter))
        return parameter if slot is None else slot.original

    def _take(self, local: nn.Parameter, slot: Slot) -> None:
        """Take what a step has made of the rows, also where it has put new tensors in place."""
        rows = slot.shard.local
        if local.data_ptr() != rows.data_ptr():
            rows.detach().copy_(local.detach())
            local.data = rows.detach()
        slot.shard.written()
        if local.grad is None:
            slot.sharded().grad = None
        else:
            mine = slot.sharded().grad.to_local()
            if local.grad.data_ptr() != mine.data_ptr():
                mine.copy_(local.grad)
            local.grad = None


def _to_rows(value: Any, shard: Shard) -> Any:
    if isinstance(value, Face):
        return value._shard.local
    if isinstance(value, Tensor) and value.shape == shard.shape:
        rows: Any = shard.rows(value).to(shard.local.device, copy=True).contiguous()
        rows._face = face_of(Shard(rows, shard.shape, shard.device))
        rows._face._shard.origin = value
        return rows
    return value


def _to_face(value: Any, slot: Slot) -> Any:
    if isinstance(value, Tensor) and value.shape == slot.shard.local.shape:
        kept = getattr(value, "_face", None)
        if kept is None:
            kept = face_of(Shard(value, slot.shape, slot.device))
            value._face = kept  # type: ignore[attr-defined]
        return kept
    return value
