"""The pipeline of one strategy: its blocks, and the segments that run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from .block import PipelineBlock
from .call import BlockInfo, Reference
from .deferred import DeferredTensor
from .plan import SegmentPlan, may_split
from .segment import Segment
from .segment_run import RunSegment, SegmentRun
from .transport import Transport
from .trial import BlockTrial

WHOLE_BATCHES = (
    "Layer {name} has other outputs on parts of a batch ({reason}), so the stages run one after "
    "another on whole batches, with the numbers of one device. {remedy}"
)

OTHER_NUMBERS = (
    "Layer {name} has other outputs on parts of a batch, such as by dropout or batch "
    "normalization. With --microbatches {number}, its random numbers and statistics are not those "
    "of one device."
)


class Pipeline:
    """Runs segments on the ranks of a group.

    Attributes:
        keeps_graph: whether another backward pass may use the graphs of the current one.
    """

    def __init__(
        self,
        transport: Transport,
        microbatches: int | None,
        notice: Callable[[str, str], None],
    ) -> None:
        """Start without segments.

        Args:
            transport: sends tensors between the ranks.
            microbatches: number of parts of a batch; None for two per rank, or one where parts
                would change the numbers.
            notice: shows a text to the user, once per topic.
        """
        self._transport = transport
        self._given = microbatches
        self._notice = notice
        self._plans: dict[Hashable, SegmentPlan] = {}
        self._current: Segment | None = None
        self.keeps_graph = True

    def segment_for(self, block: PipelineBlock, leaves: list[Any], spec: Any) -> Segment:
        """Return the segment that a call of ``block`` belongs to."""
        current = self._current
        if current is None or not self._continues(current, block, leaves, spec):
            self._current = current = Segment(self._transport.device.type, self._run)
        if block.index + 1 == len(block.stack.blocks):
            self._current = None
        return current

    def _continues(
        self, segment: Segment, block: PipelineBlock, leaves: list[Any], spec: Any
    ) -> bool:
        """Whether a call continues ``segment``; a trial needs the outputs of earlier trials."""
        if not segment.can_continue(block, leaves):
            return False
        own = [x for x in leaves if isinstance(x, DeferredTensor) and x.segment is segment]
        return all(map(segment.has_tried, own)) or not block.needs_trial(leaves, spec, segment)

    def _run(self, segment: Segment, finals: list[Reference]) -> list[Tensor]:
        plan = self._plan(segment, finals)
        parameters = list(
            dict.fromkeys(p for call in plan.calls for p in call.block.local_parameters())
        )
        run = SegmentRun(plan, segment, parameters, self._transport, lambda: self.keeps_graph)
        if not torch.is_grad_enabled():
            outputs = run.forward()
        else:
            outputs = RunSegment.apply(run, *segment.inputs, *parameters)  # type: ignore[no-untyped-call]
        self._share_statistics(plan)
        return list(outputs)

    def _plan(self, segment: Segment, finals: list[Reference]) -> SegmentPlan:
        """Return the plan of such segments, which knows the shapes after the first one."""
        shapes = tuple((x.shape, x.dtype, x.requires_grad) for x in segment.inputs)
        calls = tuple(call.structure for call in segment.calls)
        trained = tuple(
            p.requires_grad for call in segment.calls for p in call.block.local_parameters()
        )
        key = (shapes, calls, trained, tuple(finals), segment.modes)
        if key not in self._plans:
            size = segment.batch_size
            split = may_split(segment, finals, random=self._given is not None)
            wanted = 2 * self._transport.group.size() if self._given is None else self._given
            self._plans[key] = SegmentPlan.of(segment, finals, min(wanted, size) if split else 1)
        return self._plans[key]

    def try_block(
        self,
        block: PipelineBlock,
        forward: Callable[..., Any],
        leaves: list[Any],
        spec: Any,
        batch_size: int,
    ) -> tuple[BlockInfo, list[Any]]:
        """Let the owner of a block try it, and tell the others; collective."""

        def find_out() -> tuple[BlockInfo, Any]:
            with block.as_running():
                trial = BlockTrial(block.name, block.module, forward, leaves, spec)
                info, output = trial.run(batch_size, self._given != 1)
            return dataclasses.replace(info, spec=None), output  # torch warns of pickled ones

        found, output = self._transport.broadcast_object(find_out, block.owner)
        tried, structure = tree_flatten(output)
        info: BlockInfo = dataclasses.replace(found, spec=structure)
        if batch_size > 1 and block.module.training:
            self._explain(block, info)
        return info, tried

    def _explain(self, block: PipelineBlock, info: BlockInfo) -> None:
        """Say why stages do not overlap, or why numbers differ."""
        if self._given is not None:
            if self._given > 1 and info.mode == "random":
                text = OTHER_NUMBERS.format(name=block.name, number=self._given)
                self._notice("pipeline-random", text)
        elif info.mode == "random":
            text = WHOLE_BATCHES.format(
                name=block.name,
                reason="such as dropout or batch normalization",
                remedy="--microbatches 4 overlaps them, with other random numbers and statistics.",
            )
            self._notice("pipeline-whole-batches", text)
        elif info.mode == "whole":
            text = WHOLE_BATCHES.format(name=block.name, reason="its samples meet", remedy="")
            self._notice("pipeline-whole-batches", text.strip())

    def _share_statistics(self, plan: SegmentPlan) -> None:
        """Give all ranks the running statistics that batch normalization has updated."""
        for call in plan.calls:
            if call.is_training:
                for buffer in call.block.running_statistics:
                    self._transport.broadcast(buffer, call.block.owner)
