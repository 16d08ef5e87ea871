"""Which modules are sharded, and which are units: unsharded and resharded as one group."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.sharding.param_state import device_of

MIN_UNIT_ELEMENTS = 1 << 16
"""Number of elements from which a child of a container becomes a unit of its own."""

WRAPPERS = frozenset({"LightningModule", "_FabricModule"})
"""Classes whose modules are no roots: one is not called, and one sets attributes on its child."""

NOT_UNITS = frozenset({"BertEmbeddings"})
"""Classes in ``_no_split_modules`` whose weights other modules use (BERT's tied decoder)."""


@dataclass
class ShardingPlan:
    """How one outermost module is sharded.

    Attributes:
        root: the outermost module, with all parameters that no unit has.
        units: modules with a parameter group of their own, inner ones first.
        replicated: parameters that are replicated on every rank.
    """

    root: nn.Module
    units: list[nn.Module]
    replicated: set[nn.Parameter] = field(default_factory=set)


def sharding_plans(
    modules: list[nn.Module], device: torch.device, named: tuple[str, ...]
) -> list[ShardingPlan]:
    """Plan how ``modules`` are sharded, with all modules inside them.

    Args:
        modules: outermost modules, not sharded yet.
        device: parameters on other devices are replicated.
        named: names of the classes that become units; chosen automatically if empty.

    Raises:
        StrategyError: no module is of a class in ``named``.
    """
    roots = [root for module in modules for root in _called_modules(module)]
    if named and roots:  # none while they await a backward pass
        _check_names(roots, named)
    counts = collections.Counter(id(p) for root in roots for p in root.parameters())
    plans = []
    for root in roots:
        replicated = {
            p for p in root.parameters() if counts[id(p)] > 1 or not _can_shard(p, device)
        }
        replicated |= _unsupported_parameters(root)
        units = list(_units(root, named))
        replicated |= _rare_dtypes(root, units, replicated)
        if any(p not in replicated for p in root.parameters()):
            plans.append(ShardingPlan(root, units, replicated))
    return plans


def _called_modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules that are called, inside of containers and ``WRAPPERS``."""
    forward = getattr(type(module), "forward", None)
    uncalled = forward is getattr(nn.Module, "forward", None) or any(
        cls.__name__ in WRAPPERS for cls in type(module).__mro__
    )
    own = next(module.parameters(recurse=False), None) is not None
    if not uncalled or own:
        yield module
        return
    for child in module.children():
        yield from _called_modules(child)


def _can_shard(parameter: nn.Parameter, device: torch.device) -> bool:
    """Whether FSDP2 can shard ``parameter``, and keeps its hooks and layout."""
    return (
        type(parameter) is nn.Parameter
        and not is_lazy(parameter)
        and parameter.dim() > 0
        and parameter.numel() > 0
        and parameter.is_floating_point()
        and parameter.is_contiguous()
        and device_of(parameter) == device
        and not parameter._backward_hooks
        and not parameter._post_accumulate_grad_hooks
    )


def _unsupported_parameters(root: nn.Module) -> set[nn.Parameter]:
    """Return the parameters with sparse gradients, and those of TorchScript modules."""
    unsupported: set[nn.Parameter] = set()
    for module in root.modules():
        if getattr(module, "sparse", False) is True or isinstance(module, torch.jit.ScriptModule):
            unsupported.update(module.parameters())
    return unsupported


def _rare_dtypes(
    root: nn.Module, units: list[nn.Module], replicated: set[nn.Parameter]
) -> set[nn.Parameter]:
    """Return parameters without their group's dtype: FSDP2 communicates a group as one buffer."""
    rare: set[nn.Parameter] = set()
    seen: set[nn.Parameter] = set(replicated)
    for group in (*units, root):
        own = [p for p in group.parameters() if p not in seen]
        seen.update(own)
        if own:
            sizes: collections.Counter[torch.dtype] = collections.Counter()
            for parameter in own:
                sizes[parameter.dtype] += parameter.numel()
            common = sizes.most_common(1)[0][0]
            rare.update(p for p in own if p.dtype != common)
    return rare


def _units(root: nn.Module, named: tuple[str, ...]) -> Iterator[nn.Module]:
    """Yield the units below ``root``, inner ones first."""
    chosen = list(dict.fromkeys(_chosen(root, named)))
    users = collections.Counter(
        id(p) for m in root.modules() for p in set(m.parameters(recurse=False))
    )
    for module in reversed(chosen):
        inside = collections.Counter(
            id(p) for m in module.modules() for p in set(m.parameters(recurse=False))
        )
        shared = any(users[key] > count for key, count in inside.items())
        if inside and not shared and module is not root:
            yield module


def _chosen(root: nn.Module, named: tuple[str, ...]) -> Iterator[nn.Module]:
    if named:
        yield from (m for m in root.modules() if type(m).__name__ in named)
        return
    known = _no_split(root) - NOT_UNITS
    found = [m for m in root.modules() if type(m).__name__ in known]
    if found:
        yield from found
        return
    for module in root.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            for child in module.children():
                if sum(p.numel() for p in child.parameters()) >= MIN_UNIT_ELEMENTS and _is_called(
                    child
                ):
                    yield child


def _no_split(root: nn.Module) -> set[str]:
    """Return the classes that models of transformers declare as blocks."""
    lists = (getattr(m, "_no_split_modules", None) or () for m in root.modules())
    return set(itertools.chain.from_iterable(lists))


def _is_called(module: nn.Module) -> bool:
    return list(_called_modules(module)) == [module]


def _check_names(roots: Iterable[nn.Module], named: tuple[str, ...]) -> None:
    """Refuse names of classes that no model contains."""
    present = {type(m).__name__ for root in roots for m in root.modules()}
    missing = [name for name in named if name not in present]
    if missing:
        some = next((n for n in sorted(present) if n[:4] == missing[0][:4]), min(present))
        raise StrategyError(
            format_message(
                f"--fsdp-units: no module is a {' or a '.join(missing)}",
                f"Classes in the model: {', '.join(sorted(present))}",
                f"--fsdp-units {some}",
            )
        )
