"""What the cell sees of a model that DeepSpeed holds: parameters, gradients and states as ever.

DeepSpeed takes gradients away as they arrive, spreads optimizer states over ranks, and
under stage 3 leaves parameters without content.  A cell that looks at any of these
would see None, nothing, or zeros.  So while an engine holds a parameter, its class is
one of those below: what is read is collected from all ranks at that moment, and what
is changed goes back before the next step.  All ranks run the same cell, so all come here.
"""

from __future__ import annotations

import collections
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from .engine_wrapper import Home

raw_grad: Any = torch.Tensor.grad
"""The descriptor of torch's own ``.grad``: what lies on this rank, if anything."""

CONTENT = {"data", "T", "mT", "H", "mH", "real", "imag"}
"""Attributes of a tensor for which its content is needed."""

OF_SHAPE = {"size", "numel", "nelement", "dim", "ndimension", "shape", "ndim", "__len__"}
OF_TENSOR = {
    "requires_grad_", "register_hook", "register_post_accumulate_grad_hook", "retain_grad",
    "is_floating_point", "is_complex", "element_size", "get_device", "type", "is_contiguous",
}  # fmt: skip
"""Methods that ask for shape, and for what is known without content."""


class Watched(nn.Parameter):
    """A parameter of an engine: ``.grad`` is one device's, wherever its parts lie."""

    home: Any  # a Home

    @property
    def grad(self) -> Tensor | None:
        """The gradient over the global batch; what is changed in it counts at the step."""
        if self.home.busy:
            found: Tensor | None = raw_grad.__get__(self)
        else:
            found = self.home.gradients.read(self)
        return found

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if self.home.busy:
            raw_grad.__set__(self, value)
        else:
            self.home.gradients.write(self, value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """Return a plain parameter with the same values."""
        if id(self) not in memo:
            self.home.refuse_copies()
            memo[id(self)] = nn.Parameter(self.detach().clone(), self.requires_grad)
        copied: nn.Parameter = memo[id(self)]
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a plain parameter, without what DeepSpeed has put on it."""
        self.home.refuse_copies()
        return _plain, (self.detach().clone(), self.requires_grad)


def _plain(content: Tensor, requires_grad: bool) -> nn.Parameter:
    return nn.Parameter(content, requires_grad)


class Partitioned(Watched):
    """A parameter of stage 3, brought together when something asks for its content."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func`` on whole parameters, if it needs more of them than their shape."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            asked = _asked(func)
            if asked == "shape" and args and isinstance(args[0], Partitioned):
                stand_in = args[0].home.gathering.shape_of(args[0])
                if stand_in is not None and not _of_deepspeed():
                    return func(stand_in, *args[1:], **kwargs)
            elif asked == "content":
                found = list(_partitioned([*args, *kwargs.values()]))
                if found and not _of_deepspeed():
                    found[0].home.gathering.touch(found, _writes(func))
            return func(*args, **kwargs)


def _asked(func: Any) -> str:
    """Return what ``func`` asks of a tensor: ``shape``, ``content``, or nothing of either."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        name = func.__self__.__name__
        if name not in OF_SHAPE:
            return "content" if name in CONTENT else ""
    if name in OF_SHAPE:
        return "shape"
    return "" if name in OF_TENSOR else "content"


def _writes(func: Any) -> bool:
    """Tell whether ``func`` changes a tensor: its name ends in one underscore, as torch's do."""
    name = str(getattr(func, "__name__", ""))
    return name == "__set__" or (name.endswith("_") and not name.endswith("__"))


def _partitioned(values: Any) -> Iterator[Partitioned]:
    for value in values:
        if isinstance(value, Partitioned):
            yield value
        elif isinstance(value, list | tuple):
            yield from _partitioned(value)


def _of_deepspeed() -> bool:
    """Tell whether DeepSpeed itself is asking: it knows what it has taken apart."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").split(".")[0]
        if package != "torch":
            return bool(package == "deepspeed")
        frame = frame.f_back
    return False


class SpreadState(collections.defaultdict[Any, Any]):
    """An optimizer's ``state`` while its parts lie on all ranks: whole as soon as it is read."""

    def __init__(self, home: Home, index: int) -> None:
        """Stand for the state of the optimizer ``index`` of ``home``."""
        super().__init__(dict)
        self.home = home
        self.index = index
        self.whole = False

    def _collect(self) -> None:
        if not self.whole:
            self.whole = True
            self.update(self.home.states.collect(self.index))

    def spread(self) -> None:
        """Forget what was collected; it has been taken in."""
        self.whole = True
        self.clear()
        self.whole = False

    def __reduce__(self) -> Any:
        """Travel as what torch's optimizers have."""
        return collections.defaultdict, (dict, dict(self.items()))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy as what torch's optimizers have."""
        import copy

        return copy.deepcopy(collections.defaultdict(dict, self.items()), memo)


def _collecting(name: str) -> Any:
    plain = getattr(collections.defaultdict, name)

    def method(self: SpreadState, *args: Any, **kwargs: Any) -> Any:
        self._collect()
        return plain(self, *args, **kwargs)

    return method


for _name in (
    "__getitem__", "__setitem__", "__delitem__", "__iter__", "__len__", "__contains__", "__eq__",
    "__repr__", "items", "keys", "values", "get", "pop", "popitem", "setdefault", "clear", "copy",
):  # fmt: skip
    setattr(SpreadState, _name, _collecting(_name))
