"""Wrappers around the forward pass of chosen modules.

The modules' classes are patched, not the user's objects: these can still be pickled and copied,
and nothing has to be removed from them afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from nbmgpu.patches import PatchStack

ForwardWrapper = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Takes a forward function, its positional and keyword arguments; returns the output."""


class ForwardPatch:
    """Wraps ``forward`` of chosen modules."""

    def __init__(self) -> None:
        """Begin with no module."""
        self.chosen: WeakKeyDictionary[nn.Module, tuple[type[nn.Module], list[ForwardWrapper]]] = (
            WeakKeyDictionary()
        )
        self.patches = PatchStack()
        self.patched: set[type[nn.Module]] = set()

    def add(self, module: nn.Module, wrapper: ForwardWrapper) -> None:
        """Wrap the forward pass of ``module``, outside of its earlier wrappers."""
        cls, wrappers = self.chosen.setdefault(module, (type(module), []))
        wrappers.append(wrapper)
        if cls not in self.patched:
            self._patch(cls)

    def _patch(self, cls: type[nn.Module]) -> None:
        plain = cls.forward
        self.patched.add(cls)
        chosen = self.chosen

        # Compiled code would trace the look-up below; compilation resumes inside ``plain``.
        @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
        @functools.wraps(plain)
        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            own, wrappers = chosen.get(module, (None, []))
            call: Callable[..., Any] = functools.partial(plain, module)
            if own is cls:  # not where a subclass calls this one by super()
                for wrapper in wrappers:
                    call = functools.partial(_call, wrapper, call)
            return call(*args, **kwargs)

        self.patches.replace("torch.nn.Module.forward", forward, cls)

    def remove(self) -> None:
        """Restore the classes: those of the cell are sent to the notebook."""
        self.patches.remove()
        self.patched.clear()
        self.chosen.clear()


def _call(wrapper: ForwardWrapper, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return wrapper(call, args, kwargs)
