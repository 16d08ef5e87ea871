"""``dp``: one process, which copies the model to every GPU at each step (``nn.DataParallel``).

For teaching: it is how several GPUs were used before DistributedDataParallel, and it needs no
ranks.  The forward pass of each outermost module is replaced as in ``nn.parallel.data_parallel``:
inputs are scattered along dimension 0, replicas of the module run in threads, outputs are gathered
on the first GPU.  The backward pass follows the graph, so gradients are those of one device.  With
fewer than two GPUs the cell runs as in the notebook.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import parallel_apply, replicate
from torch.nn.parallel.scatter_gather import scatter_kwargs

from nbmgpu.patches import PatchStack

from . import profiles
from .base import Backward, RankContext, Strategy, Unit
from .profile import Profile

ADVANTAGES_OF_DDP = (
    "ddp is nearly always better: it has a process per GPU, so Python's global lock does not block "
    "them; the model is not copied at each step; and gradients are communicated while the backward "
    "pass runs."
)
ONE_DEVICE = (
    "dp is nn.DataParallel: one process that splits each batch over the GPUs it sees. Here it "
    "sees {count}, so nothing is parallel: the cell runs as on one device, with its numbers. "
)
PARALLEL = (
    "dp is nn.DataParallel: one process splits each batch over {count} GPUs, and copies the model "
    "to all of them at each step. A loss computed inside the model is averaged over the GPUs by "
    "their samples, which is not exact if it counts something else; batch normalization sees one "
    "GPU's part. "
)


class DataParallel(Strategy):
    """One process for all devices."""

    profile: ClassVar[Profile] = profiles.DP
    refuses_lightning: ClassVar[str] = (
        "it calls parts of the module, which nn.DataParallel does not split, and distributes by "
        "itself where it sees several GPUs"
    )

    def __init__(self, context: RankContext) -> None:
        """Use the GPUs that this process sees."""
        super().__init__(context)
        on_gpu = self.device.startswith("cuda")
        self.devices = list(range(torch.cuda.device_count())) if on_gpu else []
        self.patches = PatchStack()

    def prepare(self, units: list[Unit]) -> None:
        """Replace the forward pass of modules, and emit a notice on what dp is."""
        count = len(self.devices)
        if count < 2:
            visible = "one GPU" if count else "none"
            self.notice("data-parallel", ONE_DEVICE.format(count=visible) + ADVANTAGES_OF_DDP)
            return
        self.notice("data-parallel", PARALLEL.format(count=count) + ADVANTAGES_OF_DDP)
        for module in (module for unit in units for module in unit.modules):
            if "forward" not in vars(module):  # not where it is replaced already
                parallel = functools.partial(forward, module, self.devices)
                self.patches.replace("torch.nn.Module.forward", parallel, module)

    def begin_backward(self, backward: Backward) -> None:
        """Do nothing: autograd follows the graph through the replicas."""

    def end_backward(self, backward: Backward) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Restore the modules' own forward."""
        self.patches.remove()


class UnhookedModule(nn.Module):
    """The forward pass of a module without its hooks, which are called with the whole batch."""

    def __init__(self, module: nn.Module) -> None:
        """Wrap ``module``."""
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call ``forward`` of the module's class."""
        return type(self.module).forward(self.module, *inputs, **kwargs)


def forward(module: nn.Module, devices: list[int], *inputs: Any, **kwargs: Any) -> Any:
    """Run the forward pass of ``module`` on parts of ``inputs``, on all ``devices`` at once.

    Returns:
        The outputs, gathered on the first device.
    """
    parts, named = scatter_kwargs(inputs, kwargs, devices, 0)
    wrapped = UnhookedModule(module)
    if len(parts) < 2:
        return wrapped(*inputs, **kwargs)
    used = devices[: len(parts)]
    outputs = parallel_apply(replicate(wrapped, used), parts, named, used)
    sizes = [next((t.shape[0] for t in _tensors(part) if t.dim()), 1)
             for part in zip(parts, named, strict=True)]  # fmt: skip
    return gather(outputs, sizes, torch.device("cuda", devices[0]))


def gather(outputs: list[Any], sizes: list[int], device: torch.device) -> Any:
    """Gather the outputs of all parts on ``device``.

    Tensors are concatenated along dimension 0; those of shape (), such as losses, are averaged,
    weighted by ``sizes``, the samples of each part.
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        parts = [output.to(device) for output in outputs]
        if first.dim():
            return torch.cat(parts)
        weighted = [part * size for part, size in zip(parts, sizes, strict=True)]
        return torch.stack(weighted).sum() / sum(sizes)
    if isinstance(first, dict):
        items = [(key, gather([o[key] for o in outputs], sizes, device)) for key in first]
        return type(first)(items)
    if isinstance(first, list | tuple):
        joined = [gather(list(members), sizes, device) for members in zip(*outputs, strict=True)]
        return type(first)(*joined) if hasattr(first, "_fields") else type(first)(joined)
    return first


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _tensors(inner)
