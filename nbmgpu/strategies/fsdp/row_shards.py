"""Tensors dealt out over ranks by rows: gathered, put back, and what autograd sees of that."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_map

# Torch before 2.12 knows them by other names.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Shard:
    """One tensor of which each rank has some rows, as ``torch.chunk`` deals them out.

    Attributes:
        local: this rank's rows, maybe none; shape (rows, ...).
        shape: of the whole tensor.
        device: where the whole tensor is to be; ``local`` may lie in the host's memory.
        home: the whole tensor, once it has come home; from then on nothing is collective.
        origin: a whole tensor of the cell that the rows were taken from, to come home to.
        written: called when rows have changed.
        together: of all shards; False once ranks may be gone, and what is not home is lost.
    """

    together: ClassVar[bool] = True

    def __init__(self, local: Tensor, shape: torch.Size, device: torch.device) -> None:
        """Take ``local``, which is not copied, for this rank's part."""
        self.local = local
        self.shape = shape
        self.device = device
        self.home: Tensor | None = None
        self.origin: Tensor | None = None
        self.written: Callable[[], None] = _nothing
        self._snapshot: weakref.ref[Tensor] | None = None

    @property
    def height(self) -> int:
        """Rows of the first ranks; the last ones may have less."""
        return -(-self.shape[0] // dist.get_world_size())

    def rows(self, whole: Tensor) -> Tensor:
        """Return the view of ``whole`` that is this rank's."""
        start = min(dist.get_rank() * self.height, self.shape[0])
        return whole[start : start + self.height]

    def whole(self) -> Tensor:
        """Gather the tensor; collective until it is home."""
        if self.home is not None:
            return self.home
        if not Shard.together:
            return torch.full(self.shape, float("nan"), dtype=self.local.dtype, device=self.device)
        with torch.no_grad():
            return gather(self.local.detach(), self.shape, self.device)

    def put(self, whole: Tensor) -> None:
        """Take this rank's rows from ``whole``."""
        with torch.no_grad():
            if self.home is not None:
                self.home.copy_(whole)
            else:
                self.local.detach().copy_(self.rows(whole))
                self.written()

    def snapshot(self) -> Tensor:
        """Return a whole copy for those who look at memory; one for all who hold it now."""
        kept = self._snapshot() if self._snapshot else None
        if kept is None:
            kept = self.whole()
            self._snapshot = weakref.ref(kept)
        return kept


def _nothing() -> None:
    pass


def gather(local: Tensor, shape: torch.Size, device: torch.device) -> Tensor:
    """Put all ranks' rows together; collective."""
    world_size = dist.get_world_size()
    height = -(-shape[0] // world_size)
    part = local.to(device)
    if part.shape[0] < height:
        padding = part.new_zeros((height - part.shape[0], *shape[1:]))
        part = torch.cat([part, padding])
    whole = part.new_empty((height * world_size, *shape[1:]))
    all_gather_single(whole, part.contiguous())
    return whole if whole.shape == shape else whole[: shape[0]].clone()


@dataclass(frozen=True)
class View:
    """How a view came about: ``function``, called with the tensor in place of ``of``."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    of: Any
    item: int | None = None

    def on(self, tensor: Tensor) -> Tensor:
        """Take the view of ``tensor``."""

        def put(value: Any) -> Any:
            return tensor if value is self.of else value

        args, kwargs = tree_map(put, (self.args, self.kwargs))
        result: Any = self.function(*args, **kwargs)
        return result if self.item is None else result[self.item]  # type: ignore[no-any-return]


class ParameterSlot:
    """What a ``ShardedParameter`` needs of the engine that shards it."""

    def __init__(self) -> None:
        """Have seen nothing."""
        self.gathered: list[weakref.ref[Tensor]] = []
        self.late: Tensor | None = None

    def add_late(self, grad: Tensor) -> None:
        """Keep a gradient that arrived outside of the engine."""
        self.late = grad.clone() if self.late is None else self.late + grad

    def sharded(self) -> Tensor:
        """Return the engine's sharded parameter, a DTensor."""
        raise NotImplementedError

    def unsharded(self) -> Tensor | None:
        """Return the whole parameter that the engine shows to a forward pass, if it has one."""
        raise NotImplementedError

    def grad_face(self) -> Tensor | None:
        """Return the gradient as the cell may see it."""
        raise NotImplementedError

    def set_grad(self, grad: Tensor | None) -> None:
        """Take a whole tensor, or a face, for the gradient."""
        raise NotImplementedError


class Whole(torch.autograd.Function):
    """A whole parameter outside of FSDP's forward; its gradient waits for the end of the pass."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, slot: ParameterSlot, shard: Shard) -> Tensor:
        """Gather ``shard``; ``leaf`` is what makes the result require a gradient."""
        ctx.slot = slot
        return shard.whole()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        """Keep the gradient, for the strategy to reduce."""
        ctx.slot.add_late(grad)
        return None, None, None
