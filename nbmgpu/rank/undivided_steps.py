"""Steps in which every rank does all the work, as no loader divides what they train on.

A cell may cut batches from a tensor, or train without an optimizer of torch.  ``--exact always``
divides the calls of its modules, so it starts again where that saves time; see ``restart``.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.outermost_calls import OutermostCalls

if TYPE_CHECKING:
    from .progress import TrainingProgress
    from .restart import RestartRequest

SECONDS = 1.0
"""Time of such steps after which the cell starts again, which takes about as long."""

FEWEST = 3
"""Steps that are measured at least: the first one may have to compile or load something."""

MOST = 50
"""Steps that are measured at most: those that take less than 20 ms are faster undivided."""


class UndividedSteps:
    """Measures such steps, from the first call of a module to the end of its gradients."""

    def __init__(
        self, progress: TrainingProgress, restart: RestartRequest, world_size: int
    ) -> None:
        """Ask ``restart`` to start the cell again where its steps are such.

        Args:
            progress: the current shard.
            restart: ends this rank.
            world_size: number of ranks.
        """
        self._progress = progress
        self._restart = restart
        self._world_size = world_size
        self._calls = OutermostCalls(self._begin)
        self._is_observing = self._is_over = False
        self._began: float | None = None
        self._times: list[float] = []

    def install(self) -> None:
        """Patch what computes gradients; modules only once there is such a step."""
        patches = PatchStack()
        patches.wrap("torch.autograd.backward", self._measured)
        patches.wrap("torch.autograd.grad", self._measured)
        patches.wrap("torch.autograd.grad", self._checked)

    def _measured(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def gradients(*args: Any, **kwargs: Any) -> Any:
            result = plain(*args, **kwargs)
            if not self._is_over:
                self._end()
            return result

        return gradients

    def _checked(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Start again where gradients of parameters are of this rank's shard only."""

        @functools.wraps(plain)
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self._progress.has_part and any(map(self._is_trained, tree_leaves(inputs))):
                self._restart.consider("local-gradient")
            return plain(outputs, inputs, *args, **kwargs)

        return grad

    def _is_trained(self, leaf: object) -> bool:
        """Whether ``leaf`` is a parameter, or may be one that is an argument of ``torch.func``.

        Rows of the batch are not: gradients of samples are right on shards.
        """
        if isinstance(leaf, nn.Parameter):
            return True
        if not isinstance(leaf, Tensor) or not torch._C._functorch.is_functorch_wrapped_tensor(
            leaf
        ):
            return False
        shard = self._progress.shard
        return shard is not None and (not leaf.dim() or len(leaf) != shard.samples)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a step at a call that can be divided: of a model, with samples for all ranks."""
        if self._began is not None or not any(True for _ in module.parameters()):
            return
        tensors = (x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.dim())
        first = next(tensors, None)
        if first is not None and len(first) >= self._world_size:
            self._began = time.perf_counter()

    def _end(self) -> None:
        """End a step, and decide once there have been enough."""
        if self._progress.has_part:
            self._stop()
        elif not self._is_observing:
            self._is_observing = True
            self._calls.install()
        elif self._began is not None:
            self._times.append(time.perf_counter() - self._began)
            self._began = None
            count = len(self._times)
            if count >= FEWEST and count * statistics.median(self._times) > SECONDS:
                self._restart.consider_same_work()
                self._stop()  # it cannot start again
            elif count == MOST:
                self._stop()

    def _stop(self) -> None:
        self._is_over = True
        self._calls.remove()
