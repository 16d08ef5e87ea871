"""Calls of modules whose layers are on several devices."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.busy_time import BusyTimes

from .device_map import Route, own_tensors, tensors_of
from .generators import SharedGenerator
from .transfer import InputCopies, device_in, to_device


class ModuleCalls:
    """The patched calls of ``nn.Module``: inputs go to a module's device, outputs come back.

    Attributes:
        routes: how the calls of each known module run; None for modules without tensors.
        busy: how long each device computes.
    """

    def __init__(
        self, devices: Sequence[torch.device], on_new: Callable[[nn.Module], None]
    ) -> None:
        """Patch nothing yet.

        Args:
            devices: the devices; the first is the one that the cell knows.
            on_new: called with the outermost module of an unknown one; adds ``routes``.
        """
        self.routes: WeakKeyDictionary[nn.Module, Route | None] = WeakKeyDictionary()
        self.busy = BusyTimes(devices)
        self._first = devices[0]
        self._on_new = on_new
        self._generator = SharedGenerator(devices[0])
        self._depth = 0
        self._in_part = False
        self._patches = PatchStack()

    def install(self) -> None:
        """Patch ``nn.Module.__call__``."""
        plain = nn.Module.__call__

        # A graph would end at each layer, which may be elsewhere.
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            route = self._route_of(module)
            # A checkpoint calls modules again, in a backward pass, as in the forward pass.
            again = torch._C._current_graph_task_id() != -1
            if route is None or ((self._depth or again) and not route.enters):
                return plain(module, *args, **kwargs)
            return self._call(route, functools.partial(plain, module), args, kwargs, again)

        self._patches.replace("torch.nn.Module.__call__", call)

    def remove(self) -> None:
        """Remove the patches, and forget all modules."""
        self._patches.remove()
        self._generator.move_to(self._first)
        self.routes.clear()

    def forget(self, root: nn.Module) -> None:
        """Find the devices of ``root`` again at its next call."""
        for module in root.modules():
            self.routes.pop(module, None)

    def _route_of(self, module: nn.Module) -> Route | None:
        if module not in self.routes:
            if not any(True for _ in tensors_of(module)):
                self.routes[module] = None
            elif not any(is_lazy(t) for m in module.modules() for t in own_tensors(m)):
                self._on_new(outermost(module))
        return self.routes.get(module)

    def _call(
        self,
        route: Route,
        plain: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        again: bool,
    ) -> Any:
        """Run the call ``plain`` of a module on its device."""
        is_outermost, was_in_part = self._depth == 0 and not again, self._in_part
        is_timed = route.is_part and not was_in_part and not again
        source, before = device_in((args, kwargs)), self._generator.device
        begin = self.busy.mark(self._first) if is_outermost else 0.0
        copies = InputCopies()
        args, kwargs = copies.to_device((args, kwargs), route.device)
        self._generator.move_to(route.device)
        start = self.busy.mark(route.device) if is_timed else 0.0
        self._depth, self._in_part = self._depth + 1, was_in_part or route.is_part
        try:
            output = plain(*args, **kwargs)
        finally:
            self._depth, self._in_part = self._depth - 1, was_in_part
        if is_timed:
            self.busy.add_call(route.device, start)
        copies.write_back()
        if is_outermost or route.returns:
            self._generator.move_to(self._first if is_outermost else before)
            output = output if source is None else to_device(output, source)
        if is_outermost:
            self.busy.add_pass(self._first, begin)
        return output


def outermost(module: nn.Module) -> nn.Module:
    """Return the outermost module of the process that has ``module`` in it; else itself."""
    found = [x for x in gc.get_objects() if issubclass(type(x), nn.Module)]
    parents = {
        id(child): parent
        for parent in found
        for child in vars(parent).get("_modules", {}).values()
        if child is not None
    }
    while (above := parents.get(id(module))) is not None:
        module = above
    return module
