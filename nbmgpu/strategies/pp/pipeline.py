"""The pipeline of one strategy: its blocks, and the segments that run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from nbmgpu.environment.float32 import full_float32
from nbmgpu.strategies.module_copy import hooks_of_cell
from nbmgpu.strategies.sample_tags import CopyTag
from nbmgpu.strategies.sharding.call_order import CallOrderCheck, start_of_forward

from .block import Form, PipelineBlock
from .block_time import BlockTime, measure
from .call import BlockInfo, Reference
from .deferred import DeferredTensor
from .idle_time import IdleTimes
from .plan import SegmentPlan, may_split
from .segment import Segment
from .segment_run import RunSegment, SegmentRun
from .transport import Transport
from .trial import BlockTrial

WHOLE_BATCHES = (
    "Layer {name} has other outputs on parts of a batch ({reason}). To keep the numbers, stages "
    "run one after another on whole batches. {remedy}"
)

OF_GROUP = (
    "But these are the samples of one group of ranks, so the numbers may be others than on one "
    "device. Try: %%mgpu --strategy pp"
)
"""Follows where several groups of ranks share a batch."""

OTHER_NUMBERS = (
    "Layer {name} has other outputs on parts of a batch, such as by dropout or batch "
    "normalization. With --microbatches {number}, its random numbers and statistics are not those "
    "of one device."
)

HOOKS = (
    "Hooks on modules inside of layer {name} run on the layer's rank only, once per part of a "
    "batch: what they store is not on the other ranks. Hooks on the layer itself run on all ranks."
)


class Pipeline:
    """Runs segments on the ranks of a group.

    Attributes:
        transport: sends tensors between the ranks.
        keeps_graph: whether another backward pass may use the graphs of the current one.
        measured: how long blocks take, of those that were measured.
        idle: how long ranks wait for each other.
    """

    def __init__(
        self,
        transport: Transport,
        microbatches: int | None,
        notice: Callable[[str, str], None],
        measures: bool = False,
        call_order: CallOrderCheck | None = None,
        copy_tag: CopyTag | None = None,
    ) -> None:
        """Start without segments.

        Args:
            transport: sends tensors between the ranks.
            microbatches: number of parts of a batch; None for two per rank, or one where parts
                would change the numbers.
            notice: shows a text to the user, once per topic.
            measures: whether to measure how long blocks take in training.
            call_order: compares the blocks that ranks with other samples gather; None if each rank
                has whole blocks.
            copy_tag: is told which input has the samples of an output, along the first dimension.
        """
        self.transport = transport
        self._given = microbatches
        self._notice = notice
        self._call_order = call_order
        self._copy_tag = copy_tag
        self._plans: dict[Hashable, SegmentPlan] = {}
        self._current: Segment | None = None
        self.keeps_graph = True
        self.measured: dict[PipelineBlock, BlockTime] = {}
        self.idle = IdleTimes(transport.group, transport.device)
        self._measures = measures
        self._runs: WeakSet[SegmentRun] = WeakSet()

    def check_order(self, number: int, name: str) -> None:
        """Check that all ranks that shard a block gather its parameters now; collective.

        Raises:
            StrategyError: another rank runs another block.
        """
        if self._call_order is not None:
            self._call_order.check(start_of_forward(number, False), f"the start of {name}.forward")

    @property
    def has_pending_graphs(self) -> bool:
        """Whether there are graphs of blocks that have had no backward pass."""
        return any(run.has_graphs for run in self._runs)

    def forget_plans(self) -> None:
        """Forget which rank runs which block, when that has changed."""
        self._plans.clear()

    def runs_at_once(self, info: BlockInfo) -> bool:
        """Whether a block runs when it is called: later, the cell may have drawn numbers first."""
        return info.draws and self._given is None

    def segment_for(self, block: PipelineBlock, leaves: list[Any], form: Form) -> Segment:
        """Return the segment that a call of ``block`` belongs to."""
        current = self._current
        if current is None or not self._continues(current, block, leaves, form):
            self._current = current = Segment(self.transport.device.type, self._run)
        if block.index + 1 == len(block.stack.blocks):
            self._current = None
        return current

    def _continues(
        self, segment: Segment, block: PipelineBlock, leaves: list[Any], form: Form
    ) -> bool:
        """Whether a call continues ``segment``; a trial needs the outputs of earlier trials."""
        if not segment.can_continue(block, leaves):
            return False
        own = [x for x in leaves if isinstance(x, DeferredTensor) and x.segment is segment]
        return all(map(segment.has_tried, own)) or not block.needs_trial(leaves, form, segment)

    def _run(self, segment: Segment, finals: list[Reference]) -> list[Tensor]:
        plan = self._plan(segment, finals)
        states = list(dict.fromkeys(s for call in plan.calls for s in call.block.states))
        run = SegmentRun(plan, segment, states, self.transport, self.idle, lambda: self.keeps_graph)
        if torch.is_grad_enabled():
            self._runs.add(run)
            parameters = [state.local for state in states]
            outputs = list(RunSegment.apply(run, *segment.inputs, *parameters))  # type: ignore[no-untyped-call]
        else:
            outputs = [output for output, _ in run.forward()]
            for state in states:
                state.reshard()
        for call in segment.calls:
            if call.info.changes:
                call.block.share_state(self.transport)
        if self._copy_tag is not None and plan.batch_input is not None:
            batch = segment.inputs[plan.batch_input]
            for output in outputs:
                self._copy_tag(output, batch)
        return outputs

    def _plan(self, segment: Segment, finals: list[Reference]) -> SegmentPlan:
        """Return the plan of such segments."""
        shapes = tuple((x.shape, x.dtype, x.requires_grad) for x in segment.inputs)
        calls = tuple(call.structure for call in segment.calls)
        trained = tuple(
            p.requires_grad for call in segment.calls for p in call.block.local_parameters()
        )
        key = (shapes, calls, trained, tuple(finals), segment.modes)
        if key not in self._plans:
            size = segment.batch_size
            split = may_split(segment, finals, random=self._given is not None)
            wanted = 2 * self.transport.group.size() if self._given is None else self._given
            self._plans[key] = SegmentPlan.of(segment, finals, min(wanted, size) if split else 1)
        return self._plans[key]

    def try_block(
        self,
        block: PipelineBlock,
        leaves: list[Any],
        spec: Any,
        batch_size: int,
    ) -> tuple[BlockInfo, list[Any]]:
        """Let the owner of a block try it, and tell the others; collective."""

        trains = torch.is_grad_enabled() and block.module.training
        measures = self._measures and trains and block not in self.measured

        def find_out() -> tuple[BlockInfo, Any, BlockTime | None]:
            with block.as_running():
                trial = BlockTrial(block.name, block.module, leaves, spec)
                with full_float32():
                    info, output = trial.run(batch_size, self._given != 1)
                seconds = measure(block.module, leaves, spec) if measures else None
            # torch warns of pickled specs
            return dataclasses.replace(info, spec=None), output, seconds

        found, output, seconds = self.transport.broadcast_object(find_out, block.owner)
        if seconds is not None:
            self.measured[block] = seconds
        tried, structure = tree_flatten(output)
        info: BlockInfo = dataclasses.replace(found, spec=structure)
        inner = list(block.module.modules())[1:]
        if any(map(hooks_of_cell, inner)):
            self._notice("pipeline-hooks", HOOKS.format(name=block.name))
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
            remedy = OF_GROUP if self._call_order is not None else ""
            text = WHOLE_BATCHES.format(
                name=block.name, reason="its samples interact", remedy=remedy
            )
            self._notice("pipeline-whole-batches", text.strip())
