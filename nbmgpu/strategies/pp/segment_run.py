"""The forward and backward pass of a segment, in microbatches: GPipe (Huang et al., 1811.06965).

All ranks run the same cell, so each has the segment's inputs, and gets its outputs from the rank of
the last stage.  In the backward pass all of them have the same gradients of the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.checkpoint import outside_of_checkpoints

from .call import Input, Reference
from .idle_time import IdleTimes
from .plan import SegmentPlan, Stage
from .segment import Segment
from .stage_grads import StageGrads
from .stage_param import StageParamState
from .stage_random import StageRandom
from .transport import TensorMeta, Transport


class SegmentRun:
    """One pass of a segment.

    Attributes:
        plan: which rank runs what.
        inputs, calls: the segment's.
        states: those of the parameters of all its blocks.
    """

    def __init__(
        self,
        plan: SegmentPlan,
        segment: Segment,
        states: list[StageParamState],
        transport: Transport,
        idle: IdleTimes,
        keeps_graph: Callable[[], bool],
    ) -> None:
        """Prepare a pass; nothing runs yet.

        Args:
            plan, states: see above.
            segment: what runs.
            transport: sends tensors between ranks.
            idle: measures how long ranks wait for each other.
            keeps_graph: whether another backward pass may follow the current one.
        """
        self.plan = plan
        self.inputs = segment.inputs
        self.calls = segment.calls
        self.states = states
        self._transport = transport
        self._idle = idle
        self._rank = transport.group.rank()
        self._keeps_graph = keeps_graph
        # Where a stage's graph of a microbatch begins and ends, by stage and microbatch.
        self._leaves: dict[tuple[int, int], dict[Input | Reference, Tensor]] = {}
        self._outputs: dict[tuple[int, int], tuple[Tensor, ...]] = {}

    @property
    def has_graphs(self) -> bool:
        """Whether it has run, and a backward pass may follow."""
        return bool(self._outputs)

    def forward(self) -> list[tuple[Tensor, TensorMeta]]:
        """Run this rank's stages; collective.

        Returns:
            The outputs of the segment on all ranks, detached, and whether they require gradients.
        """
        with self._idle.of_pass(self.plan):
            self._run_stages()
            return self._share_outputs()

    def _run_stages(self) -> None:
        random = StageRandom(self.plan, self._transport)
        for index, stage in enumerate(self.plan.stages):
            if stage.owner == self._rank:
                with random.of_stage(index), outside_of_checkpoints():
                    for microbatch in range(self.plan.microbatches):
                        self._run_stage(index, stage, microbatch)
            random.end_of_stage(index)
        self._transport.wait()

    def _run_stage(self, index: int, stage: Stage, microbatch: int) -> None:
        starts = self._receive(index)
        for call in self.calls[stage.first : stage.end]:
            for leaf in call.leaves:
                if isinstance(leaf, Input) and leaf not in starts:
                    starts[leaf] = self._part_of_input(leaf, microbatch)
        records = torch.is_grad_enabled()
        leaves = {
            key: tensor.detach().requires_grad_(records and tensor.requires_grad)
            for key, tensor in starts.items()
        }
        # Blocks may change their input in place: not a leaf of the graph, nor the cell's tensor.
        values: dict[Input | Reference, Tensor] = {k: x.clone() for k, x in leaves.items()}
        inputs = {k: x for k, x in values.items() if isinstance(k, Input)}
        versions = {k: x._version for k, x in inputs.items() if not x.is_inference()}
        with self._idle.of_stage():
            for number in range(stage.first, stage.end):
                outputs = self.calls[number].run(values.__getitem__)
                for output, value in enumerate(outputs):
                    if value is not None:
                        values[Reference(number, output)] = value
        if any(inputs[k]._version != version for k, version in versions.items()):
            raise self._changed_in_place(stage)
        passed = tuple(values[reference] for reference in self.plan.passed[index])
        self._leaves[index, microbatch], self._outputs[index, microbatch] = leaves, passed
        self._send(index, passed)

    def _part_of_input(self, leaf: Input, microbatch: int) -> Tensor:
        """Return the microbatch's part of an input, which requires a gradient as the input does."""
        tensor = self.inputs[leaf.index]
        part = self._part(tensor.detach(), leaf, microbatch)
        return part.requires_grad_(tensor.requires_grad)

    def _part(self, tensor: Tensor, leaf: Input, microbatch: int) -> Tensor:
        """Return the microbatch's part of an input or of its gradient, a view."""
        if leaf.index in self.plan.batched_inputs:
            return tensor.tensor_split(self.plan.microbatches)[microbatch]
        return tensor

    def _receive(self, index: int) -> dict[Input | Reference, Tensor]:
        """Receive what the stages before have passed on."""
        if index == 0:
            return {}
        references = self.plan.passed[index - 1]
        tensors = self._transport.receive(len(references), self.plan.stages[index - 1].owner)
        return {r: t for r, t in zip(references, tensors, strict=True) if t is not None}

    def _send(self, index: int, values: tuple[Tensor, ...]) -> None:
        """Pass values on to the next stage, if there is one."""
        if index + 1 < len(self.plan.stages):
            self._transport.send(values, self.plan.stages[index + 1].owner)

    def _share_outputs(self) -> list[tuple[Tensor, TensorMeta]]:
        """Broadcast the outputs from the rank of the last stage."""
        plan, last = self.plan, len(self.plan.stages) - 1
        owner = plan.stages[last].owner
        outputs: list[Tensor] = []
        if owner == self._rank:
            parts = [self._outputs[last, m] for m in range(plan.microbatches)]
            places = [plan.passed[last].index(reference) for reference in plan.finals]
            outputs = [self._join([part[i] for part in parts]) for i in places]
        return self._transport.broadcast_tensors(outputs, len(plan.finals), owner)

    def _join(self, parts: list[Tensor]) -> Tensor:
        """Return the output for the whole batch of those of microbatches.

        Raises:
            StrategyError: their shapes differ.
        """
        if len(parts) == 1:
            return parts[0].clone()
        if len({part.shape[1:] for part in parts}) > 1:
            raise StrategyError(
                format_message(
                    f"Under pp, layer {self.calls[-1].block.name} has outputs of different shapes "
                    "on parts of a batch, such as sequences that are padded to the longest one",
                    "Parts of a batch are joined along the first dimension",
                    "%%mgpu --strategy pp --microbatches 1",
                )
            )
        return torch.cat(parts)

    def backward(self, grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """Return the gradients of inputs and parameters; collective.

        Args:
            grads: the gradients of the segment's outputs, the same on all ranks; None for unused
                outputs.

        Raises:
            StrategyError: gradients of gradients are asked for.
        """
        if torch.is_grad_enabled():
            raise StrategyError(
                format_message(
                    "Under pp, create_graph=True asks for gradients of gradients",
                    "The graph of each layer is on one rank",
                    "%%mgpu --strategy tp, or fsdp",
                )
            )
        with self._idle.of_pass(self.plan):
            return self._run_stages_backward(grads)

    def _run_stages_backward(self, grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        of_inputs: dict[int, Tensor] = {}
        of_parts: dict[StageParamState, Tensor] = {}
        for index, stage in reversed([*enumerate(self.plan.stages)]):
            if stage.owner == self._rank:
                found = StageGrads(self._trained(stage))
                with self._running(stage):
                    for microbatch in range(self.plan.microbatches):
                        self._run_backward(index, microbatch, grads, of_inputs, found)
                of_parts |= found.reduced()
        self._transport.wait()
        shared = self._share_input_grads(of_inputs)
        if not self._keeps_graph():
            self._leaves.clear()
            self._outputs.clear()
            for state in self.states:
                state.reshard()
        return [*shared, *(self._part_grad(state, of_parts) for state in self.states)]

    def _trained(self, stage: Stage) -> list[StageParamState]:
        """Return the states of a stage's parameters that require a gradient, gathered."""
        calls = self.calls[stage.first : stage.end]
        states = dict.fromkeys(state for call in calls for state in call.block.states)
        for state in states:
            state.unshard()
        return [state for state in states if state.unsharded.requires_grad]

    @contextmanager
    def _running(self, stage: Stage) -> Iterator[None]:
        """Let a stage's blocks compute again what they have checkpointed in themselves."""
        with ExitStack() as running:
            for block in dict.fromkeys(call.block for call in self.calls[stage.first : stage.end]):
                running.enter_context(block.as_running())
            yield

    def _run_backward(
        self,
        index: int,
        microbatch: int,
        grads: tuple[Tensor | None, ...],
        of_inputs: dict[int, Tensor],
        of_stage: StageGrads,
    ) -> None:
        """Run the backward pass of a stage, and send its gradients to the stage before."""
        ends = self._outputs[index, microbatch]
        seeds = self._grads_of_outputs(index, microbatch, ends, grads)
        leaves = self._leaves[index, microbatch]
        starts = {key: leaf for key, leaf in leaves.items() if leaf.requires_grad}
        pairs = [(e, s) for e, s in zip(ends, seeds, strict=True) if s is not None]
        with self._idle.of_stage():
            found = of_stage.add(
                [e for e, _ in pairs], [s for _, s in pairs], list(starts.values()),
                self._keeps_graph(),
            )  # fmt: skip
        by_leaf = dict(zip(starts, found, strict=True))
        for key, grad in by_leaf.items():
            if isinstance(key, Input) and grad is not None:
                if key.index not in of_inputs:
                    of_inputs[key.index] = torch.zeros_like(self.inputs[key.index])
                self._part(of_inputs[key.index], key, microbatch).add_(grad)
        if index:
            before = [by_leaf[r] for r in self.plan.passed[index - 1] if r in by_leaf]
            self._transport.send(before, self.plan.stages[index - 1].owner)

    def _grads_of_outputs(
        self,
        index: int,
        microbatch: int,
        ends: tuple[Tensor, ...],
        grads: tuple[Tensor | None, ...],
    ) -> list[Tensor | None]:
        """Return the gradients of what a stage has passed on; None where there is none."""
        if index + 1 == len(self.plan.stages):
            by_reference = dict(zip(self.plan.finals, grads, strict=True))
            seeds = [by_reference[reference] for reference in self.plan.passed[index]]
            if self.plan.microbatches > 1:
                number = self.plan.microbatches
                seeds = [s if s is None else s.tensor_split(number)[microbatch] for s in seeds]
            return [s if e.requires_grad else None for e, s in zip(ends, seeds, strict=True)]
        number = sum(end.requires_grad for end in ends)
        received = iter(self._transport.receive(number, self.plan.stages[index + 1].owner))
        return [next(received) if end.requires_grad else None for end in ends]

    def _share_input_grads(self, grads: dict[int, Tensor]) -> list[Tensor | None]:
        """Return the sums over ranks of the inputs' gradients; None where no rank has one."""
        wanted = [i for i, x in enumerate(self.inputs) if x.requires_grad]
        if not wanted:
            return [None] * len(self.inputs)
        # On the CPU, where reading the result does not wait for the GPU.
        flags = torch.tensor([i in grads for i in wanted], dtype=torch.int32, device="cpu")
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._transport.group)
        sums: list[Tensor | None] = [None] * len(self.inputs)
        for i, has_grad in zip(wanted, flags.tolist(), strict=True):
            if not has_grad:
                continue
            total = grads.get(i)
            total = torch.zeros_like(self.inputs[i]) if total is None else total
            users = self.plan.input_users[i]
            if len(users) == 1:
                self._transport.broadcast(total, next(iter(users)))
            else:
                dist.all_reduce(total, group=self._transport.group)
            sums[i] = total
        return sums

    def _part_grad(
        self, state: StageParamState, found: dict[StageParamState, Tensor]
    ) -> Tensor | None:
        """Return the gradient of this rank's part; without elements if it is not of the stage."""
        if not state.local.requires_grad:
            return None
        return found.get(state) if state.is_owned else torch.zeros_like(state.local)

    def _changed_in_place(self, stage: Stage) -> StrategyError:
        name = self.calls[stage.first].block.name
        return StrategyError(
            format_message(
                f"Under pp, layer {name} or one after it changes its input in place",
                "Only one rank would see the change",
                "inplace=False in the first layer",
            )
        )


class RunSegment(torch.autograd.Function):
    """A segment as one operation of the cell's graph."""

    @staticmethod
    def forward(ctx: Any, run: SegmentRun, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the segment; ``tensors`` are its inputs and parameters."""
        ctx.run = run
        ctx.set_materialize_grads(False)  # a gradient of zeros is not the same as none
        with torch.enable_grad():
            outputs = run.forward()
        ctx.mark_non_differentiable(*(x for x, meta in outputs if not meta.requires_grad))
        return tuple(x for x, _ in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """Run its backward pass."""
        return None, *ctx.run.backward(grads)
