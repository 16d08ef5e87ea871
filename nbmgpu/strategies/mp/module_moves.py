"""``model.to(device)``: a move to a GPU spreads the model, instead of filling that GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nbmgpu.patches import PatchStack


class ModuleMoves:
    """The patched ``to``, ``cuda`` and ``cpu`` of ``nn.Module``."""

    def __init__(
        self,
        kind: str,
        spread: Callable[[nn.Module, torch.device], None],
        forget: Callable[[nn.Module], None],
    ) -> None:
        """Patch nothing yet.

        Args:
            kind: type of the devices over which models are spread.
            spread: called with a module that was to move to such a device, and with that device.
            forget: called with a module that has moved elsewhere.
        """
        self._kind = kind
        self._spread = spread
        self._forget = forget
        self._patches = PatchStack()

    def install(self) -> None:
        """Install the patches."""
        plain = nn.Module.to

        @functools.wraps(plain)
        def to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
            device, others, named = _without_device(args, kwargs)
            if device is None or device.type != self._kind:
                plain(module, *args, **kwargs)
                if device is not None:
                    self._forget(module)
                return module
            if others or named:
                plain(module, *others, **named)  # first: another dtype may need less memory
            self._spread(module, device)
            return module

        def cuda(module: nn.Module, device: int | torch.device | None = None) -> nn.Module:
            index = device if device is None or isinstance(device, int) else device.index
            return to(module, torch.device("cuda", index or 0))

        def cpu(module: nn.Module) -> nn.Module:
            return to(module, torch.device("cpu"))

        self._patches.replace("torch.nn.Module.to", to)
        self._patches.replace("torch.nn.Module.cuda", functools.wraps(nn.Module.cuda)(cuda))
        self._patches.replace("torch.nn.Module.cpu", functools.wraps(nn.Module.cpu)(cpu))

    def remove(self) -> None:
        """Remove the patches."""
        self._patches.remove()


def _without_device(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.device | None, tuple[Any, ...], dict[str, Any]]:
    """Return the device in the arguments of ``Module.to``, and the others that change tensors."""
    named: dict[str, Any] = {
        name: kwargs[name] for name in ("dtype", "memory_format") if name in kwargs
    }
    others = tuple(value for value in args if isinstance(value, torch.dtype))
    given = kwargs.get("device", kwargs.get("tensor", args[0] if args else None))
    if isinstance(given, Tensor):
        return given.device, (given.dtype,), named
    if isinstance(given, str | int | torch.device):
        return torch.device(given), others, named
    return None, others, named
