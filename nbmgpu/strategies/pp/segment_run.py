"""The forward and backward pass of a segment, in microbatches: GPipe (Huang et al., 1811.06965).

All ranks run the same cell, so each has the segment's inputs, and gets its outputs from the rank of
the last stage.  In the backward pass all of them have the same gradients of the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nbmgpu.errors import StrategyError, format_message

from .call import Input, Reference
from .plan import SegmentPlan, Stage, TensorMeta
from .segment import Segment
from .stage_random import StageRandom
from .transport import Transport, meta_of


class SegmentRun:
    """One pass of a segment.

    Attributes:
        plan: which rank runs what.
        inputs, calls: the segment's.
        parameters: those of all its blocks, without elements on ranks that do not own them.
    """

    def __init__(
        self,
        plan: SegmentPlan,
        segment: Segment,
        parameters: list[nn.Parameter],
        transport: Transport,
        keeps_graph: Callable[[], bool],
    ) -> None:
        """Prepare a pass; nothing runs yet.

        Args:
            plan, parameters: see above.
            segment: what runs.
            transport: sends tensors between ranks.
            keeps_graph: whether another backward pass may follow the current one.
        """
        self.plan = plan
        self.inputs = segment.inputs
        self.calls = segment.calls
        self.parameters = parameters
        self._transport = transport
        self._rank = transport.group.rank()
        self._keeps_graph = keeps_graph
        # Where a stage's graph of a microbatch begins and ends, by stage and microbatch.
        self._leaves: dict[tuple[int, int], dict[Input | Reference, Tensor]] = {}
        self._outputs: dict[tuple[int, int], tuple[Tensor, ...]] = {}

    def forward(self) -> tuple[Tensor, ...]:
        """Run this rank's stages; return the outputs of the segment on all ranks; collective."""
        random = StageRandom(self.plan, self._transport)
        for index, stage in enumerate(self.plan.stages):
            if stage.owner == self._rank:
                with random.of_stage(index):
                    for microbatch in range(self.plan.microbatches):
                        self._run_stage(index, stage, microbatch)
            random.end_of_stage(index)
        self._transport.wait()
        outputs = self._share_outputs()
        if not any(x.requires_grad for x in (*self.inputs, *self.parameters)):
            self._leaves.clear()
        return outputs

    def _run_stage(self, index: int, stage: Stage, microbatch: int) -> None:
        starts = self._receive(index, microbatch)
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
        for number in range(stage.first, stage.end):
            outputs = self.calls[number].run(values.__getitem__)
            for output, value in enumerate(outputs):
                if value is not None:
                    values[Reference(number, output)] = value
        if any(inputs[k]._version != version for k, version in versions.items()):
            raise self._changed_in_place(stage)
        passed = tuple(values[reference] for reference in self.plan.passed[index])
        self._leaves[index, microbatch], self._outputs[index, microbatch] = leaves, passed
        self._send(index, microbatch, passed)

    def _part_of_input(self, leaf: Input, microbatch: int) -> Tensor:
        """Return the microbatch's part of an input, which requires a gradient as the input does."""
        tensor = self.inputs[leaf.index]
        part = tensor.detach()
        if leaf.index in self.plan.batched_inputs:
            part = part.tensor_split(self.plan.microbatches)[microbatch]
        return part.requires_grad_(tensor.requires_grad)

    def _receive(self, index: int, microbatch: int) -> dict[Input | Reference, Tensor]:
        """Receive what the stages before have passed on."""
        if index == 0:
            return {}
        references, src = self.plan.passed[index - 1], self.plan.stages[index - 1].owner
        key = (index - 1, microbatch)
        if key not in self.plan.metas:
            self.plan.metas[key] = self._transport.receive_object(src)
        metas = self.plan.metas[key]
        tensors = self._transport.receive(metas, src)
        return {
            reference: tensor.requires_grad_(meta.requires_grad)
            for reference, tensor, meta in zip(references, tensors, metas, strict=True)
        }

    def _send(self, index: int, microbatch: int, values: tuple[Tensor, ...]) -> None:
        """Pass values on to the next stage, if there is one."""
        if index + 1 == len(self.plan.stages):
            return
        dst, key = self.plan.stages[index + 1].owner, (index, microbatch)
        if key not in self.plan.metas:
            self.plan.metas[key] = tuple(map(meta_of, values))
            self._transport.send_object(self.plan.metas[key], dst)
        self._transport.send(values, dst)

    def _share_outputs(self) -> tuple[Tensor, ...]:
        """Broadcast the outputs from the rank of the last stage."""
        plan, last = self.plan, len(self.plan.stages) - 1
        owner = plan.stages[last].owner
        outputs: list[Tensor] = []
        if owner == self._rank:
            parts = [self._outputs[last, m] for m in range(plan.microbatches)]
            places = [plan.passed[last].index(reference) for reference in plan.finals]
            outputs = [
                torch.cat([part[i].detach() for part in parts])
                if plan.microbatches > 1
                else parts[0][i].detach().clone(memory_format=torch.contiguous_format)
                for i in places
            ]
        if not plan.final_metas:
            ends = self._outputs.get((last, 0), ())
            needs = [ends[plan.passed[last].index(r)].requires_grad for r in plan.finals if ends]
            metas = [
                TensorMeta(output.shape, output.dtype, grad)
                for output, grad in zip(outputs, needs, strict=True)
            ]
            plan.final_metas.extend(self._transport.broadcast_object(lambda: metas, owner))
        if owner != self._rank:
            outputs = [
                torch.empty(m.shape, dtype=m.dtype, device=self._transport.device)
                for m in plan.final_metas
            ]
        for output in outputs:
            self._transport.broadcast(output, owner)
        return tuple(outputs)

    def backward(self, grads: tuple[Tensor, ...]) -> list[Tensor | None]:
        """Return the gradients of inputs and parameters; collective.

        Args:
            grads: the gradients of the segment's outputs, the same on all ranks.

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
        of_inputs = {i: torch.zeros_like(x) for i, x in enumerate(self.inputs) if x.requires_grad}
        of_parameters: dict[int, Tensor] = {}
        for index in reversed(range(len(self.plan.stages))):
            if self.plan.stages[index].owner == self._rank:
                for microbatch in range(self.plan.microbatches):
                    self._run_backward(index, microbatch, grads, of_inputs, of_parameters)
        self._transport.wait()
        for i, grad in of_inputs.items():
            self._share_input_grad(i, grad)
        if not self._keeps_graph():
            self._leaves.clear()
            self._outputs.clear()
        return [
            *(of_inputs.get(i) for i in range(len(self.inputs))),
            *(self._parameter_grad(p, of_parameters) for p in self.parameters),
        ]

    def _run_backward(
        self,
        index: int,
        microbatch: int,
        grads: tuple[Tensor, ...],
        of_inputs: dict[int, Tensor],
        of_parameters: dict[int, Tensor],
    ) -> None:
        """Run the backward pass of a stage, and send its gradients to the stage before."""
        ends = self._outputs[index, microbatch]
        seeds = self._grads_of_outputs(index, microbatch, ends, grads)
        leaves = self._leaves[index, microbatch]
        starts = {key: leaf for key, leaf in leaves.items() if leaf.requires_grad}
        trained = [p for p in self.parameters if p.numel() and p.requires_grad]
        wanted = [*starts.values(), *trained]
        pairs = [(e, s) for e, s in zip(ends, seeds, strict=True) if s is not None]
        found: Any = [None] * len(wanted)
        if wanted and pairs:
            found = torch.autograd.grad(
                [e for e, _ in pairs], wanted, [s for _, s in pairs],
                retain_graph=self._keeps_graph(), allow_unused=True,
            )  # fmt: skip
        by_leaf = dict(zip(starts, found[: len(starts)], strict=True))
        for parameter, grad in zip(trained, found[len(starts) :], strict=True):
            _accumulate(of_parameters, id(parameter), grad)
        for key, grad in by_leaf.items():
            if isinstance(key, Input) and grad is not None:
                self._part_of_grad(of_inputs[key.index], key.index, microbatch).add_(grad)
        if index:
            self._transport.send(
                [
                    torch.zeros_like(leaves[r]) if by_leaf[r] is None else by_leaf[r]
                    for r in self.plan.passed[index - 1]
                    if r in by_leaf
                ],
                self.plan.stages[index - 1].owner,
            )

    def _grads_of_outputs(
        self, index: int, microbatch: int, ends: tuple[Tensor, ...], grads: tuple[Tensor, ...]
    ) -> list[Tensor | None]:
        """Return the gradients of what a stage has passed on; None where there is none."""
        if index + 1 == len(self.plan.stages):
            by_reference = dict(zip(self.plan.finals, grads, strict=True))
            seeds = [by_reference[reference] for reference in self.plan.passed[index]]
            if self.plan.microbatches > 1:
                seeds = [s.tensor_split(self.plan.microbatches)[microbatch] for s in seeds]
            return [s if e.requires_grad else None for e, s in zip(ends, seeds, strict=True)]
        metas = self.plan.metas[index, microbatch]
        needed = [meta for meta in metas if meta.requires_grad]
        received = iter(self._transport.receive(needed, self.plan.stages[index + 1].owner))
        return [next(received) if meta.requires_grad else None for meta in metas]

    def _part_of_grad(self, grad: Tensor, index: int, microbatch: int) -> Tensor:
        if index in self.plan.batched_inputs:
            return grad.tensor_split(self.plan.microbatches)[microbatch]
        return grad

    def _share_input_grad(self, index: int, grad: Tensor) -> None:
        """Give all ranks the gradient of an input, to which its users have contributed."""
        users = self.plan.input_users.get(index, set())
        if len(users) == 1:
            self._transport.broadcast(grad, next(iter(users)))
        elif users:
            dist.all_reduce(grad, group=self._transport.group)

    def _parameter_grad(
        self, parameter: nn.Parameter, of_parameters: dict[int, Tensor]
    ) -> Tensor | None:
        """Return a parameter's gradient; without elements where another rank owns it."""
        if not parameter.requires_grad:
            return None
        return (
            of_parameters.get(id(parameter)) if parameter.numel() else torch.zeros_like(parameter)
        )

    def _changed_in_place(self, stage: Stage) -> StrategyError:
        name = self.plan.calls[stage.first].block.name
        return StrategyError(
            format_message(
                f"Under pp, layer {name} or one after it changes its input in place",
                "Only one rank would see the change",
                "inplace=False in the first layer",
            )
        )


def _accumulate(grads: dict[int, Tensor], key: int, grad: Tensor | None) -> None:
    if grad is not None:
        grads[key] = grads[key].add_(grad) if key in grads else grad.clone()


class RunSegment(torch.autograd.Function):
    """A segment as one operation of the cell's graph."""

    @staticmethod
    def forward(ctx: Any, run: SegmentRun, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the segment; ``tensors`` are its inputs and parameters."""
        ctx.run = run
        with torch.enable_grad():
            outputs = run.forward()
        fixed = [
            o for o, m in zip(outputs, run.plan.final_metas, strict=True) if not m.requires_grad
        ]
        ctx.mark_non_differentiable(*fixed)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Run its backward pass."""
        return None, *ctx.run.backward(grads)
