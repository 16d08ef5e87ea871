"""FSDP2's ``fully_shard``, without changes to the user's modules.

``fully_shard`` puts a class, hooks and DTensors on modules.  Here all of them are removed again:
modules keep their classes, so that ``type(m) is nn.Linear`` and ``deepcopy`` work as before, their
calls are patched at ``nn.Module.__call__``, and where FSDP2 would register a DTensor, it registers
the cell's own parameter, as a ``ShardedParameter``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
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

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.mesh_sizes import DP, FSDP
from nbmgpu.strategies.sharding.call_order import LARGEST, TIMEOUT, CallOrderCheck
from nbmgpu.strategies.sharding.param_state import MOVED
from nbmgpu.strategies.sharding.parameter_storage import FreedStorage
from nbmgpu.strategies.sharding.tensor_shard import ShardLayout
from nbmgpu.strategies.strategy_options import StrategyOptions

from .collectives import AllGather, ReduceScatter
from .forward_hooks import spare_python_time
from .fsdp_param import CellFSDPParam, FSDPParamState
from .fsdp_param_group import CellFSDPParamGroup
from .module_call import ModuleCall
from .wrap_policy import ShardingPlan


class FSDPWrapper:
    """All modules that FSDP2 shards in this process.

    Attributes:
        mesh: the ranks to shard over, or of shape (replicas, ranks to shard over).
        shard_group: the ranks that hold the rows of one tensor; None for all ranks.
        replica_group: the ranks that hold the same rows; None if there are no replicas.
        calls: the calls of sharded modules, by ``id`` of the module.
        param_states: all sharded parameters, in the same order on all ranks.
        groups: the groups that have them, in that order.
        call_order: checks that ranks issue the same collectives.
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        options: StrategyOptions,
        reshard: bool,
        strategy: str,
        freed_storage: FreedStorage,
    ) -> None:
        """Initialize without modules.

        Args:
            mesh: the ranks to shard over, or of shape (replicas, ranks to shard over).
            options: precision and offloading.
            reshard: whether to free unsharded parameters after the forward pass.
            strategy: name of the strategy, for messages.
            freed_storage: frees the memory of the parameters' original data.
        """
        self.mesh = mesh
        names = mesh.mesh_dim_names or ()
        everyone = mesh.size() == dist.get_world_size() and mesh.ndim == 1
        self.shard_group = None if everyone else mesh.get_group(FSDP)
        self.replica_group = mesh.get_group(DP) if DP in names else None
        self.reshard = reshard
        half = torch.bfloat16 if options.precision == "bf16" else None
        self.policy = MixedPrecisionPolicy(half, half and torch.float32, None)
        self.root_policy = MixedPrecisionPolicy(
            half, half and torch.float32, half and torch.float32
        )
        pinned = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu")
        self.offload = pinned if options.cpu_offload else OffloadPolicy()
        self.calls: dict[int, ModuleCall] = {}
        self.param_states: list[FSDPParamState] = []
        self.groups: list[CellFSDPParamGroup] = []
        self.patches = PatchStack()
        self.freed_storage = freed_storage
        self.call_order = CallOrderCheck(
            strategy,
            dist.new_group(backend="gloo", timeout=TIMEOUT),
            "%%mgpu --strategy ddp, or --fsdp-units with a module that always runs",
            in_memory=True,
        )
        self._reduced: list[int] = []

    def check_reductions(self) -> None:
        """Check that all ranks have reduced the same units in the same order; collective.

        Raises:
            StrategyError: they have not, and gradients are mixed up.
        """
        order, self._reduced[:] = tuple(self._reduced), []
        self.call_order.check(hash(order) & LARGEST, "the same place of the backward pass")

    def shard(
        self, plan: ShardingPlan, layouts: Mapping[nn.Parameter, ShardLayout] | None = None
    ) -> list[FSDPParamState]:
        """Shard one root with its units; return the states of its parameters.

        Args:
            plan: the root, and how it is sharded.
            layouts: how parameters are split over ranks with the same samples, each of which shards
                its part.
        """
        layouts = layouts or {}
        originals = {
            (id(m), n): p
            for m in plan.root.modules()
            for n, p in m._parameters.items()
            if p is not None
        }
        _register_parts(plan.root, layouts)
        classes = {id(m): type(m) for m in plan.root.modules()}
        # FSDP2 moves a unit to the GPU and copies its rows: after that, the whole is not needed.
        on_host = {p: p.data for p in originals.values() if p in MOVED}
        for unit in plan.units:
            self._fully_shard(unit, plan.replicated, self.policy, self.reshard)
            _take_back(on_host)
        root = self._fully_shard(
            plan.root, plan.replicated, self.root_policy, self.reshard and None
        )
        _take_back(on_host)
        states = [*(self._restore_module(m, classes) for m in (*plan.units, plan.root))]
        for module in plan.root.modules():
            for name in ("_is_fsdp_managed_module", "_fsdp_use_orig_params"):
                module.__dict__.pop(name, None)
        param_states: list[FSDPParamState] = []
        for state in states:
            for group in filter(None, [state._fsdp_param_group]):
                group.__class__ = CellFSDPParamGroup
                position = len(self.calls) + len(param_states)
                group.on_reduction = partial(self._reduced.append, position)
                group.shard_group, group.replica_group = self.shard_group, self.replica_group
                for fsdp_param in group.fsdp_params:
                    fsdp_param.__class__ = CellFSDPParam
                    info = fsdp_param._module_info
                    original = originals[id(info.module), info.param_name]
                    assert original not in plan.replicated
                    fsdp_param._post_load_hook_handle.remove()
                    split = layouts.get(original)
                    fsdp_param.param_state = FSDPParamState(original, fsdp_param, group, split)
                    param_states.append(fsdp_param.param_state)
                group.hold([p.param_state for p in group.fsdp_params])
                self.groups.append(group)
        root._lazy_init()
        for module, state in zip((*plan.units, plan.root), states, strict=True):
            position = len(self.calls)
            self.calls[id(module)] = ModuleCall(module, state, root, position, self.call_order)
        self.freed_storage.free(param_states)
        self.param_states += param_states
        self._patch_module_call()
        return param_states

    def _fully_shard(
        self, module: nn.Module, replicated: set[nn.Parameter], policy: MixedPrecisionPolicy,
        reshard: bool | None,
    ) -> Any:  # fmt: skip
        fully_shard(
            module, mesh=self.mesh, reshard_after_forward=reshard, mp_policy=policy,
            offload_policy=self.offload, ignored_params=replicated,
        )  # fmt: skip
        sharded: Any = module  # an FSDPModule now
        if self.mesh.device_type == "cpu" and hasattr(sharded, "set_custom_reduce_scatter"):
            sharded.set_custom_all_gather(AllGather())
            sharded.set_custom_reduce_scatter(ReduceScatter())
        return fully_shard.state(module)  # type: ignore[attr-defined]

    def _restore_module(self, module: nn.Module, classes: dict[int, type]) -> Any:
        """Remove FSDP2's class, hooks and attributes from ``module``; return its ``FSDPState``."""
        state = fully_shard.state(module)  # type: ignore[attr-defined]
        state._pre_forward_hook_handle.remove()
        state._post_forward_hook_handle.remove()
        module.__class__ = classes[id(module)]
        for key in (REGISTRY_KEY, STATE_KEY):
            module.__dict__.pop(key, None)
        return state

    def _patch_module_call(self) -> None:
        """Patch ``nn.Module.__call__`` for the sharded modules."""
        if self.patches:
            return
        original_call = nn.Module.__call__
        calls = self.calls
        # A compiled graph ends where a unit begins, and another one starts inside it.
        call_between_hooks = torch.compiler.disable(ModuleCall.call, recursive=False)

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            module_call = calls.get(id(module))
            if module_call is None:
                return original_call(module, *args, **kwargs)
            return call_between_hooks(module_call, original_call, args, kwargs)

        self.patches.replace("torch.nn.Module.__call__", call)
        spare_python_time(self.patches)

    def close(self) -> None:
        """Remove the patch of module calls."""
        self.patches.remove()
        self.calls.clear()


def _take_back(on_host: Mapping[nn.Parameter, Tensor]) -> None:
    """Give parameters the data that they have on the host."""
    for parameter, data in on_host.items():
        parameter.data = data


def _register_parts(root: nn.Module, layouts: Mapping[nn.Parameter, ShardLayout]) -> None:
    """Register this rank's parts of split parameters, which FSDP2 then shards."""
    parts = {
        parameter: nn.Parameter(
            layout.part_of(parameter.detach()).clone(memory_format=torch.contiguous_format),
            parameter.requires_grad,
        )
        for parameter, layout in layouts.items()
    }
    for module in root.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter in parts:
                module._parameters[name] = parts[parameter]
