"""FSDP2 below the cell: ``fully_shard`` with nothing of it to be seen on the user's objects.

``fully_shard`` puts a class, hooks and DTensors on the modules.  Here all of it is taken
off again: modules keep their classes, so that ``type(m) is nn.Linear`` and ``deepcopy``
mean what they mean; their calls are met at ``nn.Module.__call__``; and where FSDP2 would
show a DTensor, it shows the cell's own parameter, as a ``ShardedParameter``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

# FSDP2 has no public way to tell it where its parameters are to be seen.
from torch.distributed.fsdp._fully_shard._fsdp_common import is_bw
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.utils import _apply_to_tensors

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.strategy_options import StrategyOptions

from .call_order import CallOrderCheck
from .parameter_storage import Lent
from .row_shards import ParameterSlot, Shard, reduce_scatter_single
from .sharded_tensors import Face, ShardedParameter, face_of, resolve
from .wrap_policy import Plan

POSITIVE = (1 << 62) - 1
"""Mask for hashes: negative positions have a meaning in ``CallOrderCheck``."""


def local_of(tensor: Any) -> Tensor:
    """Return this rank's rows of a DTensor, sharing its memory."""
    rows: Tensor = tensor.to_local().detach()
    return rows


class Slot(ParameterSlot):
    """One sharded parameter: the cell's object, its home and FSDP2's part of it."""

    def __init__(self, parameter: Any, inner: CellParam, group: CellGroup) -> None:
        """Take ``parameter``, of which ``inner`` has a copy of this rank's rows."""
        super().__init__()
        self.inner = inner
        self.group = group
        self.original = parameter
        self.home: Tensor | None = parameter.data
        self.dtype, self.device, self.shape = parameter.dtype, parameter.device, parameter.shape
        self.shard = Shard(local_of(inner.sharded_param), self.shape, self.device)
        self.shard.written = group.refresh
        self.used = False
        self.empty = True
        self._grad: tuple[Any, Any] = (None, None)
        self._become_face()

    def _become_face(self) -> None:
        parameter = self.original
        nothing = torch.full((1,), float("nan"), dtype=self.dtype, device=self.device)
        parameter.data = nothing.expand(self.shape)
        given, parameter.grad = parameter.grad, None
        parameter.__class__ = ShardedParameter
        parameter._shard, parameter._slot = self.shard, self
        self.set_grad(given)

    def sharded(self) -> Any:
        """Return FSDP2's DTensor parameter."""
        return self.inner.sharded_param

    def unsharded(self) -> Tensor | None:
        """Return what forward passes of FSDP2 have computed with."""
        return getattr(self.inner, "_unsharded_param", None)

    def grad_face(self) -> Tensor | None:
        """Return the gradient as a tensor that looks whole."""
        grad = self.sharded().grad
        if grad is None:
            self._grad = (None, None)
        elif self._grad[0] is not grad:
            shard = Shard(grad.to_local(), self.shape, self.device)
            self._grad = (grad, face_of(shard))
        return self._grad[1]  # type: ignore[no-any-return]

    def set_grad(self, grad: Any) -> None:
        """Take a gradient; rows of it stay here."""
        self._grad = (None, None)
        if grad is None:
            self.sharded().grad = None
            return
        if tuple(grad.shape) != tuple(self.shape):
            what = f"assigned grad has data of a different size than {tuple(self.shape)}"
            raise RuntimeError(what)
        grad = grad.detach()
        whole = resolve(grad)[1] if isinstance(grad, Face) else grad
        rows = self.shard.rows(whole).to(self.shard.local.device, self.dtype, copy=True)
        self.sharded().grad = self.inner.to_sharded_dtensor(rows.contiguous())

    def collect(self) -> None:
        """Collect gradients that FSDP2 has not seen: they arrived after it had reduced, or at the
        cell's parameter itself, from a forward pass before it was sharded.
        """
        with torch._C.DisableTorchFunctionSubclass():
            early, self.original.grad = self.original.grad, None
        whole: Any = self.unsharded()
        after = None if whole is None else whole.grad
        if whole is not None:
            whole.grad = None
        for grad in (early, after):
            if grad is not None:
                self.add_late(grad.detach())

    def add(self, rows: Tensor) -> None:
        """Add this rank's rows to the gradient."""
        if self.sharded().grad is None:
            self.sharded().grad = self.inner.to_sharded_dtensor(rows)
        else:
            self.sharded().grad.to_local().add_(rows)

    def reduce_late(self) -> None:
        """Average what arrived outside of FSDP2, and keep this rank's rows; collective."""
        late, self.late = self.late, None
        world_size, height = dist.get_world_size(), self.shard.height
        padded = torch.zeros(
            (height * world_size, *self.shape[1:]), dtype=self.dtype, device=self.device
        )
        if late is not None:
            padded[: self.shape[0]] = late
        rows = padded.new_empty((height, *self.shape[1:]))
        reduce_scatter_single(rows, padded)
        local = self.shard.local
        self.add(rows.div_(world_size)[: local.shape[0]].to(local.device))


class CellParam(FSDPParam):
    """FSDP2's keeper of one parameter, that shows the cell's own object for the sharded one."""

    slot: Slot | None = None

    def _setattr_on_modules(self, param: nn.Parameter) -> None:
        if param is self.sharded_param and self.slot is not None:
            param = self.slot.original
        super()._setattr_on_modules(param)

    def reset_sharded_param(self) -> None:
        """Do nothing: nobody replaces the sharded parameter behind FSDP2's back."""

    def show(self, whole: bool) -> None:
        """Show modules the gathered parameter, or else the cell's."""
        self._setattr_on_modules(self._unsharded_param if whole else self.sharded_param)

    def is_shown(self) -> bool:
        """Tell whether the module holds what is expected: nobody has put something else there."""
        info = self._module_info
        now = info.module._parameters.get(info.param_name)
        assert self.slot is not None
        return now is self.slot.original or now is getattr(self, "_unsharded_param", None)


class CellGroup(FSDPParamGroup):
    """FSDP2's keeper of one unit, that shows gathered parameters only to forward passes."""

    fsdp_params: list[CellParam]  # type: ignore[assignment]
    place: int
    reduced: list[int]

    def _register_state_dict_hooks(self) -> None:
        pass  # what the cell reads and loads goes through faces

    def pre_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Gather, and show."""
        result = super().pre_forward(module, args, kwargs)
        self._show(True)
        return result

    def post_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        """Hide, also what stays gathered for the backward pass."""
        output = super().post_forward(module, input, output)
        if not is_bw():
            self._show(False)
        return output

    def pre_backward(self, default_prefetch: bool, *unused: Any) -> None:
        """Gather, and show to what is recomputed."""
        super().pre_backward(default_prefetch, *unused)
        if self.is_unsharded:
            self._show(True)

    def post_backward(self, *unused: Any) -> None:
        """Note which gradients there are, for others may not have them."""
        if torch.is_grad_enabled():  # create_graph: what is gathered will be needed once more
            return
        for param in self.fsdp_params:
            whole = getattr(param, "_unsharded_param", None)
            if whole is not None and whole.grad is not None and param.slot is not None:
                param.slot.used = True
        self.reduced.append(self.place)
        super().post_backward(*unused)

    def _show(self, whole: bool) -> None:
        for param in self.fsdp_params:
            param.show(whole and self.is_unsharded)

    def refresh(self) -> None:
        """Forget what is gathered: its rows have changed."""
        if self.is_unsharded and not is_bw():
            self._to_sharded()  # type: ignore[no-untyped-call]


class Entry:
    """A module whose calls FSDP2 must see."""

    def __init__(
        self, module: nn.Module, state: Any, root: Any, place: int, call_order: CallOrderCheck
    ) -> None:
        """Serve ``module``, that ``state`` of FSDP2 belongs to; it is the same ``place`` on all."""
        self.module = module
        self.state = state
        self.root = root
        self.place = place
        self.call_order = call_order
        self.groups: list[CellGroup] = state._fsdp_param_groups

    def call(self, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the module between FSDP2's two hooks."""
        if not all(p.is_shown() for group in self.groups for p in group.fsdp_params):
            return plain(self.module, *args, **kwargs)  # torch.func.functional_call
        name = type(self.module).__name__
        if not is_bw():
            self.call_order.check(2 * self.place, f"the start of {name}.forward")
        outermost = self.state._state_ctx.iter_forward_root is None
        args, kwargs = self.state._pre_forward(self.module, args, kwargs)
        try:
            output = plain(self.module, *args, **kwargs)
        except BaseException:
            if not is_bw():  # a checkpoint ends its recomputation by an exception
                self.root._reset_iter_state()
            raise
        if outermost and not is_bw():
            self.call_order.check(2 * self.place + 1, f"the end of {name}.forward")
        # FSDP2 warns of views: a change in place would take its hook off.
        return self.state._post_forward(self.module, args, _apply_to_tensors(_own, output))


def _own(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.requires_grad and tensor._base is not None else tensor


class Engine:
    """All modules that FSDP2 shards in this process."""

    def __init__(self, mesh: DeviceMesh, tuning: StrategyOptions, reshard: bool, name: str) -> None:
        """Shard over ``mesh`` for the strategy ``name``.

        With ``reshard``, gathered parameters are freed after the forward pass.
        """
        self.mesh = mesh
        self.reshard = reshard
        cuda = mesh.device_type == "cuda"
        half = torch.bfloat16 if tuning.precision == "bf16" else None
        self.policy = MixedPrecisionPolicy(half, half and torch.float32, None)
        self.root_policy = MixedPrecisionPolicy(
            half, half and torch.float32, half and torch.float32
        )
        self.offload = CPUOffloadPolicy(pin_memory=cuda) if tuning.cpu_offload else OffloadPolicy()
        self.entries: dict[int, Entry] = {}
        self.slots: list[Slot] = []
        self.patches = PatchStack()
        self.lent = Lent()
        self.call_order = CallOrderCheck(name)
        self.reduced: list[int] = []

    def agree_on_reductions(self) -> None:
        """Make sure that all ranks have reduced the same units in the same order; collective.

        Raises:
            StrategyError: they have not, and gradients are mixed up.
        """
        order, self.reduced[:] = tuple(self.reduced), []
        self.call_order.check(hash(order) & POSITIVE, "the same place of the backward pass")

    def shard(self, plan: Plan) -> list[Slot]:
        """Shard one root with its units; return what became of its parameters."""
        originals = {id(p): p for p in plan.root.parameters() if p not in plan.keep}
        names = {
            (id(m), n): p
            for m in plan.root.modules()
            for n, p in m._parameters.items()
            if p is not None
        }
        classes = {id(m): type(m) for m in plan.root.modules()}
        for unit in plan.units:
            self._fully_shard(unit, plan.keep, self.policy, self.reshard)
        root = self._fully_shard(plan.root, plan.keep, self.root_policy, self.reshard and None)
        states = [*(self._undress(m, classes) for m in (*plan.units, plan.root))]
        for module in plan.root.modules():
            for name in ("_is_fsdp_managed_module", "_fsdp_use_orig_params"):
                module.__dict__.pop(name, None)
        made: list[Slot] = []
        for state in states:
            for group in state._fsdp_param_groups:
                group.__class__ = CellGroup
                group.reduce_scatter_unused_params = True
                group.reduced, group.place = self.reduced, len(self.entries) + len(made)
                for inner in group.fsdp_params:
                    inner.__class__ = CellParam
                    info = inner._module_info
                    original = names[id(info.module), info.param_name]
                    assert id(original) in originals
                    inner._post_load_hook_handle.remove()
                    inner.slot = Slot(original, inner, group)
                    made.append(inner.slot)
                    inner.show(False)
        root._lazy_init()
        for module, state in zip((*plan.units, plan.root), states, strict=True):
            place = len(self.entries)
            self.entries[id(module)] = Entry(module, state, root, place, self.call_order)
        self.lent.take(made)
        self.slots += made
        self._tap()
        return made

    def _fully_shard(
        self, module: nn.Module, keep: set[nn.Parameter], policy: MixedPrecisionPolicy,
        reshard: bool | None,
    ) -> Any:  # fmt: skip
        fully_shard(
            module, mesh=self.mesh, reshard_after_forward=reshard, mp_policy=policy,
            offload_policy=self.offload, ignored_params=keep,
        )  # fmt: skip
        return fully_shard.state(module)  # type: ignore[attr-defined]

    def _undress(self, module: nn.Module, classes: dict[int, type]) -> Any:
        """Take class, hooks and attributes of FSDP2 off ``module``; return its state."""
        state = fully_shard.state(module)  # type: ignore[attr-defined]
        state._pre_forward_hook_handle.remove()
        state._post_forward_hook_handle.remove()
        module.__class__ = classes[id(module)]
        for key in (REGISTRY_KEY, STATE_KEY):
            module.__dict__.pop(key, None)
        return state

    def _tap(self) -> None:
        """Meet the calls of all modules."""
        if self.patches:
            return
        plain = nn.Module.__call__
        entries = self.entries
        # What is compiled ends where a unit begins, and begins anew inside of it.
        between_hooks = torch.compiler.disable(Entry.call, recursive=False)

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            entry = entries.get(id(module))
            if entry is None:
                return plain(module, *args, **kwargs)
            return between_hooks(entry, plain, args, kwargs)

        self.patches.replace("torch.nn.Module.__call__", call)

    def close(self) -> None:
        """Let modules be called plainly again."""
        self.patches.remove()
        self.entries.clear()
