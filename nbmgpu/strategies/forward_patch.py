"""Wrappers around the forward pass of chosen modules.

The modules' classes are patched, not the user's objects: these can still be pickled and copied,
and nothing has to be removed from them afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from nbmgpu.patches import PatchStack

ForwardWrapper = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Takes a forward function, its positional and keyword arguments; returns the output."""


class ForwardPatch:
    """Wraps ``forward`` of chosen modules.

    All instances share one patch of a class, so that they can be removed in any order, and a
    wrapper runs outside of all that were added before it, by any of them.
    """

    def add(self, module: nn.Module, wrapper: ForwardWrapper, traced: bool = True) -> None:
        """Wrap the forward pass of ``module``, outside of its earlier wrappers.

        Args:
            module: the module.
            wrapper: runs instead of its ``forward``.
            traced: whether code that the cell compiles by ``torch.compile`` may trace the wrapper;
                otherwise it and all inside of it run without compilation, as collectives and
                exchanged parameters need.
        """
        if not traced:
            wrapper = torch.compiler.disable(wrapper)
        cls, wrappers = _chosen.setdefault(module, (type(module), []))
        wrappers.append((self, wrapper))
        if cls not in _patched:
            _patched[cls] = _patch(cls), set()
        _patched[cls][1].add(self)

    def remove(self) -> None:
        """Remove all wrappers, and restore the classes: those of the cell go to the notebook."""
        for module, (_, wrappers) in list(_chosen.items()):
            wrappers[:] = [(owner, wrapper) for owner, wrapper in wrappers if owner is not self]
            if not wrappers:
                del _chosen[module]
        for cls, (patches, owners) in list(_patched.items()):
            owners.discard(self)
            if not owners:
                patches.remove()
                del _patched[cls]


_chosen = WeakIdKeyDictionary()
"""The class of each module when it was first wrapped, and its wrappers, innermost first.

By identity: the hash of a module of torchmetrics changes with its state.
"""

_patched: dict[type[nn.Module], tuple[PatchStack, set[ForwardPatch]]] = {}
"""The patch of each class, and who needs it."""


def _patch(cls: type[nn.Module]) -> PatchStack:
    plain = cls.forward

    # Compiled code would trace the look-up below; compilation resumes inside ``plain``.
    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
    @functools.wraps(plain)
    def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        own, wrappers = _chosen.get(module, (None, []))
        call: Callable[..., Any] = functools.partial(plain, module)
        if own is cls:  # not where a subclass calls this one by super()
            for _, wrapper in wrappers:
                call = functools.partial(_call, wrapper, call)
        return call(*args, **kwargs)

    patches = PatchStack()
    patches.replace("torch.nn.Module.forward", forward, cls)
    return patches


def _call(wrapper: ForwardWrapper, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return wrapper(call, args, kwargs)
