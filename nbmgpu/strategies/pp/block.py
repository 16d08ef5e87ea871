"""A block of a pipeline: its parameters are on one rank, and its calls run when they are needed."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.checkpoint import is_checkpointed
from nbmgpu.strategies.module_copy import plain_attributes
from nbmgpu.strategies.recorded_outputs import recorded_inside_layers
from nbmgpu.strategies.rnn_weights import update_rnn_weights
from nbmgpu.strategies.sharding.tensor_shard import TensorShard

from .call import BlockInfo, Call
from .deferred import DeferredTensor, value_of
from .segment import Segment
from .stacks import Stack
from .stage_param import StageParamState
from .transport import Transport

if TYPE_CHECKING:
    from .pipeline import Pipeline

PLAIN = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size,
    torch.layout, slice, enum.Enum, type(Ellipsis), type,
)  # fmt: skip
"""Types of arguments that a block cannot change."""

Form = tuple[TreeSpec, tuple[tuple[str, Any], ...]]
"""The structure of a call's arguments, and the attributes of the block."""


@dataclass(frozen=True, eq=False)
class OwnedParameter:
    """A parameter of a block.

    Attributes:
        module, name: where it is registered.
        state: its tensor on the ranks of its stage, and nothing elsewhere.
    """

    module: nn.Module
    name: str
    state: StageParamState

    def register(self, running: bool) -> None:
        """Let the module use what its stage computes with, or the cell's parameter.

        A layer that is split keeps the cell's: its wrapper puts the part in place.
        """
        state = self.state
        is_whole = running and state.split is None
        self.module._parameters[self.name] = state.unsharded if is_whole else state.parameter


class PipelineBlock:
    """One block of a stack.

    Attributes:
        module: the block.
        stack: the stack.
        index: its index in the stack.
        parameters: its parameters.
        used_outputs: the leaves of its output that the cell has used after later blocks have run.
    """

    running: ClassVar[tuple[PipelineBlock, ...]] = ()
    """The blocks that this process runs; one that is called in them is a part of them."""

    def __init__(
        self,
        pipeline: Pipeline,
        stack: Stack,
        index: int,
        parameters: list[OwnedParameter],
        number: int,
    ) -> None:
        """Initialize a block.

        Args:
            pipeline: runs it.
            stack, index: its stack, and its index there.
            parameters: its parameters.
            number: its index among the blocks of all stacks.
        """
        self._pipeline = pipeline
        self._number = number
        self.stack = stack
        self.index = index
        self.module = stack.blocks[index]
        self.parameters = parameters
        self.used_outputs: set[int] = set()
        self._infos: dict[Any, BlockInfo] = {}
        self._changes = False
        self._recurrent = [m for m in self.module.modules() if isinstance(m, nn.RNNBase)]

    @property
    def owner(self) -> int:
        """The rank in the group that has its parameters."""
        return self.stack.owner(self.index)

    @property
    def name(self) -> str:
        """Its name in the model."""
        return self.stack.names[self.index]

    @cached_property
    def states(self) -> list[StageParamState]:
        """The states of its parameters."""
        return list(dict.fromkeys(owned.state for owned in self.parameters))

    def local_parameters(self) -> list[nn.Parameter]:
        """Return this rank's parts of its parameters, which the cell's graph has."""
        return [state.local for state in self.states]

    def share_state(self, transport: Transport) -> None:
        """Give all ranks the owner's buffers and plain attributes; collective."""

        def state() -> tuple[dict[str, Tensor], list[tuple[str, Any]]]:
            buffers = {n: b.detach() for n, b in self.module.named_buffers()}
            return buffers, plain_attributes(self.module)

        buffers, attributes = transport.broadcast_object(state, self.owner)
        if transport.group.rank() == self.owner:
            return
        for name, value in buffers.items():
            self._set_buffer(name, value.to(transport.device))
        modules = list(self.module.modules())
        for path, value in attributes:
            number, _, name = path.partition(".")
            if vars(modules[int(number)]).get(name) != value:
                vars(modules[int(number)])[name] = value

    def _set_buffer(self, name: str, value: Tensor) -> None:
        path, _, last = name.rpartition(".")
        module = self.module.get_submodule(path)
        buffer: Any = module._buffers[last]
        if buffer is not None and buffer.shape == value.shape and buffer.dtype == value.dtype:
            with torch.no_grad():
                buffer.copy_(value)
        else:
            module._buffers[last] = value

    def _is_registered(self) -> bool:
        """Whether its modules have their own parameters: ``functional_call`` passes others."""
        return all(
            owned.module._parameters.get(owned.name) is owned.state.parameter
            for owned in self.parameters
        )

    def forward(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Put off the call until its output is used; a ``ForwardWrapper``."""
        if PipelineBlock.running or not self._is_registered():
            return call(*args, **kwargs)
        check_recording(self.name)
        leaves, spec = tree_flatten((args, kwargs))
        form = spec, self._attributes()
        segment = self._pipeline.segment_for(self, leaves, form)
        leaves = [x if _is_from(x, segment) else value_of(x) for x in leaves]
        for leaf in leaves:
            if isinstance(leaf, DeferredTensor):
                leaf.check()
        self._check_arguments(leaves)
        arguments = tuple(segment.argument(leaf) for leaf in leaves)
        info, tried = self._info(leaves, form, segment)
        segment.add(Call(self, call, arguments, spec, info, self.module.training), tried)
        waits = self.index + 1 < len(self.stack.blocks) and not is_checkpointed()
        if waits and not self._pipeline.runs_at_once(info):
            return segment.outputs()
        return segment.run_outputs()

    def _info(self, leaves: list[Any], form: Form, segment: Segment) -> tuple[BlockInfo, list[Any]]:
        """Return what is known about calls with such arguments; try it the first time.

        Returns:
            The knowledge, and the outputs of the trial; empty without one.
        """
        key = self._key(leaves, form, segment)
        info = self._infos.get(key)
        if info is not None:
            return info, []
        values = [segment.tried(x) if _is_from(x, segment) else x for x in leaves]
        info, tried = self._pipeline.try_block(self, values, form[0], segment.batch_size)
        self._infos[key] = info
        self._changes |= info.changes
        return info, tried

    def _key(self, leaves: list[Any], form: Form, segment: Segment) -> Any:
        """Return what a trial depends on."""
        size = segment.batch_size
        kinds = tuple(_kind(leaf, size) for leaf in leaves)
        return form, segment.records_gradients, kinds, size > 1

    def _attributes(self) -> tuple[tuple[str, Any], ...]:
        """Return the attributes that a trial depends on."""
        attributes = plain_attributes(self.module)
        if self._changes:  # such as a counter
            return tuple(each for each in attributes if each[0].endswith(".training"))
        return tuple(attributes)

    def needs_trial(self, leaves: list[Any], form: Form, segment: Segment) -> bool:
        """Whether a call with these arguments needs a trial."""
        return self._key(leaves, form, segment) not in self._infos

    def _check_arguments(self, leaves: list[Any]) -> None:
        """Refuse arguments that the block may change: other ranks would not see it."""
        for leaf in leaves:
            if not isinstance(leaf, (Tensor, *PLAIN)):
                raise StrategyError(
                    format_message(
                        f"Under pp, layer {self.name} is called with a {type(leaf).__name__}, "
                        "which one rank would change for itself",
                        "Layers take tensors, numbers and strings",
                        "use_cache=False for a key-value cache, or %%mgpu --strategy fsdp",
                    )
                )

    def run(self, call: Callable[..., Any], args: Any, kwargs: Any, info: BlockInfo) -> list[Any]:
        """Run the block on its owner; return the leaves of its output.

        Raises:
            StrategyError: the output has another structure than in the trial.
        """
        with self.as_running():
            leaves, spec = tree_flatten(call(*args, **kwargs))
        if spec != info.spec or tuple(isinstance(x, Tensor) for x in leaves) != info.tensors:
            raise self._other_output()
        return leaves

    def _other_output(self) -> StrategyError:
        return StrategyError(
            format_message(
                f"Under pp, layer {self.name} returns another structure than in an earlier call "
                "with such arguments",
                "The structure of its output must depend on its arguments only",
                "%%mgpu --strategy fsdp",
            )
        )

    @contextmanager
    def as_running(self) -> Iterator[None]:
        """Let its modules use the parameters of this rank, and forbid collectives."""
        before, PipelineBlock.running = PipelineBlock.running, (*PipelineBlock.running, self)
        forbidden, TensorShard.forbidden = TensorShard.forbidden, _check_shard
        states = self.states
        if any(state.is_resharded for state in states):
            self._pipeline.check_order(self._number, self.name)
        for state in states:
            state.begin_stage()
        self._register(running=True)
        try:
            yield
        finally:
            self._register(running=False)
            for state in states:
                state.end_stage()
            TensorShard.forbidden = forbidden
            PipelineBlock.running = before

    def _register(self, running: bool) -> None:
        for owned in self.parameters:
            owned.register(running)
        update_rnn_weights(self._recurrent)


def _check_shard(shard: TensorShard) -> StrategyError | None:
    """Return the error of gathering a parameter that is not of a running block."""
    blocks = PipelineBlock.running
    if any(state.shard is shard for block in blocks for state in block.states):
        return None
    return StrategyError(
        format_message(
            f"Under pp, layer {blocks[-1].name} uses a parameter from outside of it",
            "A layer uses its own parameters, which are on one rank, and its arguments",
            "%%mgpu --strategy fsdp",
        )
    )


def _is_from(leaf: Any, segment: Segment) -> bool:
    """Whether ``leaf`` is a deferred output of ``segment``."""
    return isinstance(leaf, DeferredTensor) and leaf.segment is segment


def _kind(leaf: Any, batch_size: int) -> Hashable:
    """Return what a trial depends on in a leaf of the arguments."""
    if isinstance(leaf, DeferredTensor):
        return DeferredTensor
    if isinstance(leaf, Tensor):
        return Tensor, batch_size > 1 and leaf.dim() > 0 and leaf.shape[0] == batch_size
    if isinstance(leaf, int | float) and not isinstance(leaf, bool):
        return "number"
    return type(leaf), repr(leaf)  # a slice cannot be hashed


def check_recording(name: str) -> None:
    """Refuse attentions and router logits, which hooks of transformers record inside of layers.

    Raises:
        StrategyError: such a hook is active.
    """
    collected = recorded_inside_layers()
    if collected:
        raise StrategyError(
            format_message(
                f"Under pp, {' and '.join(collected)} of layer {name} are asked for, which only "
                "the layer's rank has",
                "Hidden states are returned, other values inside of layers are not",
                "output_attentions=False, or %%mgpu --strategy fsdp",
            )
        )
