"""What stands around the forward pass of chosen modules.

Met at the classes, not at the user's objects, so that these stay what they are: they can
be pickled, copied and looked at, and nothing is to be taken off them afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from nbmgpu.patches import PatchStack

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Is given a forward pass and its arguments, and returns what it returned."""


class ForwardTap:
    """Stands around ``forward`` of the modules that are given to it."""

    def __init__(self) -> None:
        """Stand around none."""
        self.chosen: WeakKeyDictionary[nn.Module, tuple[type[nn.Module], list[Around]]] = (
            WeakKeyDictionary()
        )
        self.patches = PatchStack()
        self.patched: set[type[nn.Module]] = set()

    def add(self, module: nn.Module, around: Around) -> None:
        """Put ``around`` outside of whatever stands around ``module`` already."""
        cls, layers = self.chosen.setdefault(module, (type(module), []))
        layers.append(around)
        if cls not in self.patched:
            self._meet(cls)

    def _meet(self, cls: type[nn.Module]) -> None:
        plain = cls.forward
        self.patched.add(cls)
        chosen = self.chosen

        # Compiled code would look into the table above; it goes on inside ``plain``.
        @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
        @functools.wraps(plain)
        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            own, layers = chosen.get(module, (None, []))
            call: Callable[..., Any] = functools.partial(plain, module)
            if own is cls:  # not where a class below calls this one by super()
                for layer in layers:
                    call = functools.partial(_call, layer, call)
            return call(*args, **kwargs)

        self.patches.replace("torch.nn.Module.forward", forward, cls)

    def remove(self) -> None:
        """Give classes their own ``forward`` back: those of the cell travel to the notebook."""
        self.patches.remove()
        self.patched.clear()
        self.chosen.clear()


def _call(layer: Around, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return layer(call, args, kwargs)
