"""Which module of a model runs on which device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.pp.block_sequence import is_called
from nbmgpu.strategies.pp.stage_balance import balance

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Modules whose elements are not divided, if they are no larger than one device's share."""

DIVISIBLE = (*CONTAINERS, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder)
"""The modules of ``torch.nn`` that call all of their children; ``nn.MultiheadAttention`` reads the
weight of one."""


@dataclass(frozen=True)
class Route:
    """How the calls of a module reach its device.

    Attributes:
        device: where it runs, and where its own parameters and buffers are.
        enters: whether inputs of a call inside of another module's call may be elsewhere.
        returns: whether its outputs return to where the inputs were.
        is_part: whether everything in it runs on ``device``, and it is the outermost such module.
    """

    device: torch.device
    enters: bool = False
    returns: bool = False
    is_part: bool = False


@dataclass(frozen=True)
class DeviceMap:
    """The devices of a model.

    Attributes:
        routes: of every module.
        parts: names of the outermost modules that run on one device, in order, with the device;
            the name is empty if it is the model itself.
    """

    routes: Mapping[nn.Module, Route]
    parts: tuple[tuple[str, torch.device], ...]


@dataclass(frozen=True)
class _Caller:
    """The code that calls modules.

    Attributes:
        wants_tensors: whether it takes the outputs of all modules on one device; the code of an
            ``nn.Sequential`` only passes them on.
        in_base_model: whether it is in a model whose code takes outputs from several devices.
    """

    wants_tensors: bool = True
    in_base_model: bool = False


def automatic_map(
    root: nn.Module,
    devices: Sequence[torch.device],
    device_of: Callable[[Tensor], torch.device | None],
) -> DeviceMap:
    """Spread ``root`` over ``devices``, in the order of registration.

    Devices get about the same number of bytes of parameters and buffers.  The elements of an
    ``nn.Sequential`` or ``nn.ModuleList``, and the classes in a Hugging Face model's
    ``_no_split_modules``, stay whole.  A module that shares a parameter with an earlier one is on
    the same device.

    Args:
        root: the model.
        devices: where to put it.
        device_of: returns where a parameter has been put already; None if it has not.

    Raises:
        StrategyError: a module's own parameters are shared with modules on two devices.
    """
    whole = {name for m in root.modules() for name in getattr(m, "_no_split_modules", None) or ()}
    blocks = [*_blocks(root, whole, _nbytes(root) / len(devices))]
    seen: set[int] = set()
    sizes = [sum(t.nbytes for t in _fresh(tensors_of(block), seen)) for block in blocks]
    stages = balance(sizes, max(1, min(len(devices), sum(map(bool, sizes)))))
    where: dict[nn.Module, torch.device] = {}
    known: dict[int, torch.device] = {
        id(p): at for p in root.parameters() if (at := device_of(p)) is not None
    }
    for block, stage in zip(blocks, stages, strict=True):
        tied = (known[id(p)] for p in block.parameters() if id(p) in known)
        _put(block, next(tied, devices[stage]), known, where)
    _place_outer_modules(root, known, where)
    return _mapped(root, where)


def given_map(root: nn.Module, names: Mapping[str, Any], kind: str) -> DeviceMap:
    """Return the map that ``names`` describes, as accelerate's ``device_map`` does.

    Args:
        root: the model.
        names: devices by names of modules, parameters and buffers; an ``int`` is the index of a
            device of type ``kind``.
        kind: ``cuda`` or ``cpu``.

    Raises:
        StrategyError: it has layers that are not on a device of this type.
    """
    if elsewhere := {str(d) for d in names.values() if not isinstance(d, int)} & {"cpu", "disk"}:
        what = f"hf_device_map of {type(root).__name__} offloads layers to {', '.join(elsewhere)}"
        allowed = "Under mp all layers stay on the GPUs, and it spreads them by itself"
        raise StrategyError(format_message(what, allowed, "the model without device_map="))
    devices = {
        name: torch.device(kind, at) if isinstance(at, int) else torch.device(at)
        for name, at in names.items()
    }
    known: dict[int, torch.device] = {}
    where: dict[nn.Module, torch.device] = {}
    for name, module in root.named_modules():
        where[module] = _device_of_own(module, devices[_key_of(name, devices)], known)
        for parameter in module._parameters.values():
            known.setdefault(id(parameter), where[module])
    return _mapped(root, where)


def _key_of(name: str, devices: Mapping[str, torch.device]) -> str:
    """Return the name in ``devices`` of the module ``name``, or of the first thing in it."""
    above = [n for n in devices if not n or name == n or name.startswith(f"{n}.")]
    if above:
        return max(above, key=len)
    return next((n for n in devices if n.startswith(f"{name}.")), next(iter(devices)))


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of ``module``."""
    yield from module.parameters()
    yield from module.buffers()


def own_tensors(module: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of ``module`` without those of its children."""
    return [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]


def _nbytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(module))


def _fresh(tensors: Iterator[Tensor], seen: set[int]) -> Iterator[Tensor]:
    """Yield the tensors that are not ``seen``, and add them to it."""
    for tensor in tensors:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor


def _blocks(module: nn.Module, whole: set[str], share: float) -> Iterator[nn.Module]:
    """Yield the modules that are not divided, in the order of registration."""
    if not _is_divisible(module, whole):
        yield module
        return
    for child in module.children():
        if isinstance(module, CONTAINERS) and _nbytes(child) <= share:
            yield child
        else:
            yield from _blocks(child, whole, share)


def _is_divisible(module: nn.Module, whole: set[str]) -> bool:
    of_torch = type(module).__module__.startswith("torch.") and not isinstance(module, DIVISIBLE)
    return (
        any(True for _ in module.children())
        and type(module).__name__ not in whole
        and not of_torch
        and not hasattr(module, "parametrizations")
    )


def _put(
    block: nn.Module,
    device: torch.device,
    known: dict[int, torch.device],
    where: dict[nn.Module, torch.device],
) -> None:
    """Put a block on ``device``, except for modules whose parameters are elsewhere already."""
    for parameter in block.parameters():
        known.setdefault(id(parameter), device)
    for module in block.modules():
        where.setdefault(module, _device_of_own(module, device, known))


def _place_outer_modules(
    module: nn.Module, known: dict[int, torch.device], where: dict[nn.Module, torch.device]
) -> None:
    """Let divided modules run where their first child does, or their own parameters are."""
    if module in where:
        return
    for child in module.children():
        _place_outer_modules(child, known, where)
    first = next(where[child] for child in module.children())
    where[module] = _device_of_own(module, first, known)
    for parameter in module._parameters.values():
        known.setdefault(id(parameter), where[module])


def _device_of_own(
    module: nn.Module, default: torch.device, known: dict[int, torch.device]
) -> torch.device:
    """Return where the parameters that ``module`` itself has are."""
    own = [p for p in module._parameters.values() if p is not None]
    found = {known[id(p)] for p in own if id(p) in known}
    if len(found) > 1:
        places = " and ".join(sorted(map(str, found)))
        raise StrategyError(
            format_message(
                f"{type(module).__name__} shares parameters with layers on {places}",
                "Under mp a layer has its parameters on one device",
                "%%mgpu --strategy fsdp",
            )
        )
    return found.pop() if found else default


def _mapped(root: nn.Module, where: Mapping[nn.Module, torch.device]) -> DeviceMap:
    """Return the routes of all modules."""
    routes: dict[nn.Module, Route] = {}
    parts: list[tuple[str, torch.device]] = []
    _add_routes("", root, _Caller(), where, routes, parts)
    return DeviceMap(routes, tuple(parts))


def _add_routes(
    name: str,
    module: nn.Module,
    caller: _Caller,
    where: Mapping[nn.Module, torch.device],
    routes: dict[nn.Module, Route],
    parts: list[tuple[str, torch.device]],
) -> None:
    """Add the routes of ``module`` and everything in it.

    Args:
        name: name of ``module`` in the model.
        module: the module.
        caller: the code that calls it.
        where: the devices of all modules.
        routes, parts: see ``DeviceMap``.
    """
    if module in routes:
        return
    device = where[module]
    is_whole = len({where[inner] for inner in module.modules()}) == 1
    if is_whole and (is_called(module) or not any(True for _ in module.children())):
        parts.append((name, device))
        routes[module] = Route(device, enters=True, returns=caller.wants_tensors, is_part=True)
        for inner in module.modules():
            routes.setdefault(inner, Route(device))
        return
    routes[module] = Route(device, enters=True, returns=caller.wants_tensors)
    if is_called(module):
        spans = caller.in_base_model or _is_base_model(module)
        caller = _Caller(not (spans or isinstance(module, nn.Sequential)), spans)
    for child_name, child in module.named_children():
        full_name = f"{name}.{child_name}" if name else child_name
        _add_routes(full_name, child, caller, where, routes, parts)


def _is_base_model(module: nn.Module) -> bool:
    """Whether ``module`` is a base model of Hugging Face that supports a ``device_map``.

    Its code takes outputs of layers on other devices; that of the classes around it, which compute
    a loss, does not always.
    """
    supported = bool(getattr(module, "_no_split_modules", None))
    return supported and getattr(module, "base_model", None) is module
