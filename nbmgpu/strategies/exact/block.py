"""Modules of a model, which run on this rank's samples of a batch."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from nbmgpu.environment import random_state
from nbmgpu.environment.float32 import full_float32
from nbmgpu.errors import RankError, StrategyError, format_message
from nbmgpu.strategies.checkpoint import outside_of_checkpoints
from nbmgpu.strategies.outermost_calls import is_transformed
from nbmgpu.strategies.sequence.region import NotSplittableError, Region
from nbmgpu.strategies.sequence.sequence_tensor import SequenceTensor, whole_of
from nbmgpu.strategies.sequence.trial import Subject, copied, obstacle
from nbmgpu.strategies.sharding.full_tensor_view import ShardedParameter

from .draws import DrawsOfBatch
from .region import BatchRegion
from .samples import call_on_samples, with_share
from .trial import BatchTrial, Splitting

if TYPE_CHECKING:
    from .models import SplitModels

MOST_TRIALS = 16
"""Kinds of calls of a module that are tried; it runs on the whole batch in those of other kinds."""

LATER_TRIALS = (32, 256, 2048, 16384)
"""Calls of a kind that are tried again: what they compute may depend on what a trial cannot see."""

LARGEST_MODE = 8
"""Integers up to this one may choose what a module does, and are tried one by one."""


LARGEST_COPY = 1 << 29
"""Bytes of sharded parameters up to which a module is tried: the trial has a copy of all of them.
In a larger one, the modules inside are tried, in each of which FSDP2 gathers the parameters."""


class BatchBlock:
    """A module that runs on this rank's samples where that is right.

    Where it is not, it runs on the whole batch, and the modules in it are blocks of their own.
    """

    def __init__(self, module: nn.Module, name: str, models: SplitModels) -> None:
        """Initialize the block.

        Args:
            module: the module.
            name: its name in the model, for messages.
            models: all models of the cell.
        """
        self._module = weakref.ref(module)
        self._name = f"{name} ({type(module).__name__})" if name else type(module).__name__
        self._models = models
        self._splittings: dict[Hashable, Splitting] = {}
        self._calls: Counter[Hashable] = Counter()
        self._reason = ""  # of what runs on the whole batch for the first time
        self._has_parameters = any(True for _ in module.parameters())
        computes = any(True for _ in module.parameters(recurse=False))
        self._is_smallest = computes or not any(True for _ in module.children())
        self._settings = [
            (vars(each), key)
            for each in module.modules()
            for key, value in vars(each).items()
            if isinstance(value, int | float)
        ]

    def forward(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the forward pass on this rank's samples if possible; a ``ForwardWrapper``."""
        module = self._module()
        if Region.current is not None or module is None or is_transformed():
            return call(*args, **kwargs)
        leaves, spec = tree_flatten((args, kwargs))
        subject = Subject(module, call, [])
        # Modules without parameters follow those whose output is split already.
        if not self._has_parameters and not any(isinstance(x, SequenceTensor) for x in leaves):
            return self._run_whole(subject, leaves, spec)
        splitting = self._splitting(subject, leaves, spec)
        if splitting.dim is None:
            return self._run_whole(subject, leaves, spec)
        region = self._region(leaves, splitting.length_of, splitting.dim)
        if not all(region.sizes):
            return self._run_whole(subject, leaves, spec)
        self._models.has_split = True
        try:
            output = self._run_on_samples(subject, leaves, spec, region, splitting)
        except NotSplittableError as error:
            raise self._other_call(error) from None
        return self._models.returned(output)

    def _run_on_samples(
        self,
        subject: Subject,
        leaves: list[Any],
        spec: Any,
        region: BatchRegion,
        splitting: Splitting,
    ) -> Any:
        plan = splitting.draws
        region.will_average = lambda: self._models.is_in_pass
        if plan.draws:
            region.draws = DrawsOfBatch(region, plan)
        arguments = leaves, spec
        before = None if plan.draws else random_state.torch_states()
        parts, output_spec = call_on_samples(subject, region, arguments, splitting.arguments)
        if before is not None and not random_state.is_torch_at(before):
            raise NotSplittableError("it draws random numbers, unlike in its trial")
        if len(parts) != len(splitting.outputs):
            raise NotSplittableError("its output has another structure than in its trial")
        outputs = []
        for part, where in zip(parts, splitting.outputs, strict=True):
            if where is None:
                outputs.append(with_share(part, region.group))
            elif where.per_sample > 1:
                outputs.append(region.gather_samples(part, where))
            else:
                layout = region.layout(region.whole_shape(part.shape, where), where.dim)
                outputs.append(SequenceTensor.make(part, layout))
        return tree_unflatten(outputs, output_spec)

    def _other_call(self, error: NotSplittableError) -> StrategyError:
        return StrategyError(
            format_message(
                f"--exact always: {self._name} cannot run on some of the samples: {error}",
                "Its first call of this kind has shown where its samples are, which must stay so",
                "%%mgpu --exact never",
            )
        )

    def _run_whole(self, subject: Subject, leaves: list[Any], spec: Any) -> Any:
        """Run the forward pass on the whole batch; modules inside may be split."""
        if not isinstance(subject.module, nn.Sequential):
            leaves = [whole_of(leaf) for leaf in leaves]
        args, kwargs = tree_unflatten(leaves, spec)
        with self._models.context.inside():
            output = subject.call(*args, **kwargs)
        if self._reason:  # an error of the module is one of the cell
            self._models.on_whole(self._name, self._reason)
            self._reason = ""
        return self._models.returned(output)

    def _region(self, leaves: list[Any], index: int, dim: int) -> BatchRegion:
        leaf = leaves[index]
        length = leaf.shape[dim] if leaf.dim() > dim else 0
        return BatchRegion(dim, length, 0, self._models.group, None)

    def _splitting(self, subject: Subject, leaves: list[Any], spec: Any) -> Splitting:
        """Return how a call with such arguments is split; try it the first time."""
        lengths = tuple(x.shape[0] for x in leaves if isinstance(x, Tensor) and x.dim())
        kinds = tuple(_kind(leaf, lengths[:1]) for leaf in leaves)
        settings = tuple(_kind_of_setting(held.get(name)) for held, name in self._settings)
        hooks = sum(len(each._forward_hooks) for each in subject.module.modules())
        key = spec, kinds, settings, hooks, torch.is_grad_enabled()
        found = self._splittings.get(key)
        if found is None and len(self._splittings) >= MOST_TRIALS:
            found = Splitting(None, reason="its arguments change with each call")
            self._notice(found)
        if found is None:
            candidates = self._candidates(leaves)
            if not candidates:
                return Splitting(None)
            if _sharded_bytes(subject.module) > LARGEST_COPY:
                found = Splitting(None)
            else:
                found = self._try(subject, leaves, spec, candidates)
                if candidates[0][1] == 0:  # there were samples for all ranks
                    self._notice(found)
            self._splittings[key] = found
        self._calls[key] += 1
        if found.dim is not None and self._calls[key] in LATER_TRIALS:
            again = self._try(subject, leaves, spec, self._candidates(leaves))
            if again.dim is None:
                self._models.on_late(self._name, again.reason)
            found = self._splittings[key] = again
        return found

    def _notice(self, found: Splitting) -> None:
        if found.dim is None and self._is_smallest and self._has_parameters:
            self._reason = found.reason

    def _candidates(self, leaves: list[Any]) -> list[tuple[int, int]]:
        """Return indices of arguments and dimensions that may be the samples."""
        first = next((x for x in leaves if isinstance(x, Tensor) and x.dim()), None)
        if first is None or 1 < len(first) < self._models.group.size():
            return []
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for dim in (0, 1):
            for index, leaf in enumerate(leaves):
                is_deep = isinstance(leaf, Tensor) and leaf.dim() > dim
                if is_deep and all(self._region(leaves, index, dim).sizes):
                    found.setdefault((dim, leaf.shape[dim]), (index, dim))
        return list(found.values())[:3]

    def _try(
        self, subject: Subject, leaves: list[Any], spec: Any, candidates: list[tuple[int, int]]
    ) -> Splitting:
        if reason := obstacle(subject.module, leaves) or _obstacle_of_cudnn(subject.module, leaves):
            return Splitting(None, reason=reason)
        group, found = self._models.group, Splitting(None)
        try:
            for dtype in (torch.float32, torch.float64):
                with (
                    outside_of_checkpoints(),
                    full_float32(),
                    self._models.calls.paused(),
                    copied(subject.module, subject.call) as copy,
                ):
                    found = BatchTrial(copy, leaves, spec, group, dtype).run(candidates)
                if not found.may_be_rounding:
                    break
            return found
        except RankError:  # no rank can go on
            raise
        except (TypeError, RuntimeError, NotImplementedError, AttributeError) as error:
            return Splitting(None, reason=f"it cannot be copied: {error}".partition("\n")[0])


def _obstacle_of_cudnn(module: nn.Module, leaves: list[Any]) -> str:
    """Return why a recurrent network on a GPU cannot be tried; empty if it can.

    The random state of cuDNN cannot be read; it is set anew whenever that of the GPU is.
    """
    on_gpu = any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in leaves)
    layers = (m for m in module.modules() if isinstance(m, nn.RNNBase))
    if on_gpu and any(layer.training and layer.dropout for layer in layers):
        return "cuDNN draws the dropout between its layers by itself"
    return ""


def _sharded_bytes(module: nn.Module) -> int:
    """Return the size of the parameters in ``module`` of which this rank has a part only."""
    sharded = (p for p in module.parameters() if isinstance(p, ShardedParameter))
    return sum(parameter.numel() * parameter.element_size() for parameter in sharded)


def whole_output(output: Any) -> Any:
    """Return an output with whole tensors."""
    return tree_map(whole_of, output)


def _kind(leaf: Any, lengths: tuple[int, ...]) -> Hashable:
    """Return what a trial depends on in a leaf of the arguments."""
    if isinstance(leaf, Tensor):
        sizes = tuple(dim for dim in range(leaf.dim()) if leaf.shape[dim] in lengths)
        return "tensor", leaf.dim(), leaf.dtype, leaf.requires_grad, sizes
    if isinstance(leaf, int | float):
        return _kind_of_number(leaf)
    return type(leaf), repr(leaf) if isinstance(leaf, str | slice | type(None)) else ""


def _kind_of_setting(value: Any) -> Hashable:
    """Return what a trial depends on in an attribute; an integer may count epochs."""
    return value if isinstance(value, int) else _kind_of_number(value)


def _kind_of_number(value: Any) -> Hashable:
    """Return what a trial depends on in a number: a rate of 0 or 1 may switch dropout off."""
    if isinstance(value, float):
        return value if value in (0.0, 1.0) else "float"
    return value if isinstance(value, int) and abs(value) <= LARGEST_MODE else "number"
