"""The state of a rank while its cell runs.

There is one session per rank process, ``current``; outside a run it is None, and
``nbmgpu.log`` then does nothing.
"""

from __future__ import annotations

import hashlib
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch.nn.parameter import is_lazy

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies import all_reduce

from .batch_dependence import BatchDependenceDetector
from .data.batch_shard import BatchShard, EnclosingPass
from .data.current_batch import CurrentBatch
from .data.loader_events import LoaderEventDispatcher
from .interrupts import AgreedInterrupts
from .loss.divisors import Divisor, DivisorComparison, Meaning
from .loss.size_inference import SizeInference
from .metrics.optimizer_step_times import OptimizerStepTimer
from .metrics.step_time import StepTimer
from .metrics.throughput import Throughput
from .reporting import notices
from .reporting.recorder import check_metrics
from .tracker import Trackers
from .training import user_hooks
from .training.gradient_accumulation import Accumulation
from .training.model_options import Shaping
from .training.step_limit import Budget
from .training.sync_batchnorm import is_synchronised

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from nbmgpu.strategies.base import Strategy, Unit

    from .data.loader_patch import LoaderPatch
    from .loss.loss_graph import LossGraph
    from .loss.readable_losses import ReadableLosses
    from .reporting.recorder import Recorder
    from .rng.streams import RandomStreams
    from .training.optimizer_registry import OptimizerWatch


_LAZY = format_message(
    "The model has lazy modules, whose parameters get their shapes in a first forward pass",
    "Ranks share its parameters before that",
    "model(next(iter(loader))[0]) once, before the cell",
)


class Session:
    """What the taps of a rank share: strategy, units, the current share, step and recorder.

    Attributes:
        rank, world_size: which of how many.
        dp_rank, dp_size, dp_group: the same along the data-parallel dimension, and its group.
        batch: ``"global"``, or ``"per-rank"`` where ranks are not to cut batches.
        strategy, units: how ranks share the work; modules and optimizers that it was given.
        trained: ids of the parameters of these.
        recorder: takes metrics, progress and notices.
        watch: knows every optimizer that was made, and of which parameters.
        shaping: what flags change of a model: precision, recomputed blocks, batch norm.
        accumulation, budget, clips_at: what flags change of steps: how many batches each takes,
            how many there are, at which norm gradients are clipped (None: they are not).
        loaders, streams: how loaders are split, and what random numbers their batches come from.
        share: this rank's part of the current batch; None outside of loops that are split.
        step: batches taken, or backward passes outside of such loops; where curves are.
        samples: in all global batches so far.
        batch_in_use: which batch is trained on, where a loop reads ahead; ahead: who does so.
        begun, backwards: backward passes that have begun, and those that are over.
        split_passes: passes over loaders that were split.
        untrained: whether there was such a pass in which nothing was trained.
        own_gradients: whether a backward pass has reached tensors that no optimizer has.
        joined: whether samples were seen that have different numbers of rows.
        walk, reductions: digests of the steps that were trained on, and of how losses reduced; at
            the end they are compared with other ranks'.
        losses_known: whether all losses have shown how they reduce.
        adds_up: whether the last loss was a sum.
        draws_losses: whether losses go on curves; a Trainer draws its own.
        totals: counts over the global batch, the same on all ranks, that a Trainer divides by.
        held_losses: what a training step of Lightning has returned, which no name of the user's
            holds; by name.
        settled: losses of this batch that are the global batch's since their backward pass.
        chances, divisors: numbers in losses that are sizes of the share, or are so by chance.
        batch_dependence: whether steps take the samples of a batch together.
        trackers: the notebook's run of wandb, and what the cell has done with it.
        interrupts: how ranks stop together, where a model is spread over them.
        pace: how long steps take, and how long until a rank meets the others.
        stopwatch: how long each of the steps takes that ``budget`` allows.
        throughput: samples and tokens a second.
    """

    interrupts: AgreedInterrupts | None = None
    loaders: LoaderPatch
    streams: RandomStreams

    def __init__(
        self,
        rank: int,
        world_size: int,
        batch: str,
        strategy: Strategy,
        recorder: Recorder,
        watch: OptimizerWatch,
    ) -> None:
        """Begin with nothing activated."""
        self.rank = rank
        self.world_size = world_size
        self.dp_rank = strategy.dp_rank
        self.dp_size = strategy.dp_size
        self.dp_group = strategy.dp_group
        self.batch = batch
        self.strategy = strategy
        self.recorder = recorder
        self.watch = watch
        self.units: list[Unit] = []
        self.trained: frozenset[int] = frozenset()
        self.shaping = Shaping(self)
        self.accumulation = Accumulation(strategy.options.accumulate)
        self.budget = Budget(None)
        self.clips_at = strategy.options.clip

        self.share: BatchShard | None = None
        self.step = 0
        self.samples = 0
        self.batch_in_use = CurrentBatch(self._watch_inputs, self._doubt_order)
        self.ahead = LoaderEventDispatcher(self.batch_in_use)
        self._watches_inputs = False
        self._source: object = None
        self._passes: Counter[object] = Counter()

        self.begun = self.backwards = 0
        self._taken_at = 0
        self._stepped: set[int] = set()
        self.split_passes = 0
        self.untrained = self.joined = self.adds_up = self.own_gradients = False
        self.losses_known = self.draws_losses = True
        self.walk = hashlib.blake2b(digest_size=8)
        self.reductions = hashlib.blake2b(digest_size=8)
        self.totals: list[Tensor] = []
        self.held_losses: dict[str, Tensor] = {}
        self.settled: list[weakref.ref[Tensor]] = []
        self._doubts: list[Any] = []
        self._rows_of_others: dict[tuple[int, int], tuple[int, ...]] = {}
        self.chances = SizeInference()
        self.divisors = DivisorComparison(recorder, self.dp_rank, self.dp_size, self.dp_group)
        self.batch_dependence = BatchDependenceDetector(recorder, self._buffers)

        self.trackers = Trackers()
        self.pace = StepTimer()
        self.stopwatch = OptimizerStepTimer(strategy.device)
        self._logged: Counter[str] = Counter()
        self.throughput = Throughput(recorder)

    @property
    def distributes(self) -> bool:
        """Whether data is split: several ranks and a strategy that wants it."""
        return self.world_size > 1 and self.strategy.profile.shards_data

    @property
    def weighs_losses(self) -> bool:
        """Whether losses are weighed before their backward pass, and not gradients after it."""
        # Statistics over the global batch mix the ranks' losses in their gradients.
        return self.strategy.weighs_losses or self.accumulation.on or self.shaping.syncs

    def activate(self) -> None:
        """Hand optimizers that are new, with their modules, to the strategy.

        Raises:
            StrategyError: they have parameters without a shape.
        """
        if self.watch.changed:
            doubled = self.strategy.drops_units and self.watch.has_doubled
            left = self._forget_what_is_gone() if doubled else []
            self.units = self.watch.units()
            del left  # which nothing else may have kept
            parameters = [p for unit in self.units for p in unit.parameters()]
            if self.distributes and any(map(is_lazy, parameters)):
                raise StrategyError(_LAZY)
            self.trained = frozenset(map(id, parameters))
            self.divisors.restart(new_model=True)
            self.shaping.apply(self.units)
            self.strategy.prepare(self.units)
            if self._watches_inputs:
                self._watch_inputs()

    def _forget_what_is_gone(self) -> list[Optimizer]:
        """Let go of models and optimizers of earlier folds or trials; return those in use."""
        self.units = []
        self.strategy.drop_units()
        return self.watch.prune(self._on_all_ranks)

    def _on_all_ranks(self, flags: Tensor) -> None:
        """Keep those flags, of shape (n,) and 0 or 1, that are 1 on all ranks."""
        if self.distributes:
            all_reduce.all_reduce(flags).wait()
            flags.copy_(flags == self.world_size)

    def _buffers(self) -> list[Tensor]:
        return [buffer for unit in self.units for buffer in unit.buffers()]

    def _watch_inputs(self) -> None:
        """Look at what models are given, to know which batch it belongs to."""
        self._watches_inputs = True
        self.shaping.watch_inputs(self.units, self.batch_in_use.match_inputs)

    def _doubt_order(self) -> None:
        self.recorder.notice("reads-ahead", notices.READS_AHEAD)

    def has_batch_norm(self) -> bool:
        """Whether a training module normalises over the rank's share of the batch."""
        from torch.nn.modules.batchnorm import _BatchNorm

        modules = (m for unit in self.units for root in unit.modules for m in root.modules())
        layers = [m for m in modules if isinstance(m, _BatchNorm) and m.training]
        return not all(is_synchronised(m) for m in layers)

    def _has_user_hooks(self) -> bool:
        """Whether somebody but the strategy has put a hook on a parameter or a module."""
        parameters = [p for unit in self.units for p in unit.parameters()]
        own = self.strategy.count_hooks
        return user_hooks.on_modules(root for unit in self.units for root in unit.modules) or any(
            p._backward_hooks or len(p._post_accumulate_grad_hooks or ()) > own(p)
            for p in parameters
        )

    def least_samples(self) -> int:
        """Return the fewest samples a share may have: batch statistics need two."""
        return 2 if self.has_batch_norm() else 1

    def take(self, share: BatchShard, source: object, last: bool = False) -> None:
        """Begin a step on a new share of the loader ``source``, perhaps its ``last``."""
        untrained = self.backwards == self._taken_at and self._source not in (None, source)
        if untrained and self.share is not None and self.share.weight != share.weight:
            self.recorder.notice("two-loaders", notices.TWO_LOADERS)
        self.accumulation.begin_batch(last)
        self._source = source
        self.settled.clear()
        self.share = share
        self.step += 1
        self._taken_at = self.backwards
        self._stepped.clear()
        self.samples += share.global_samples
        self.throughput.add_samples(share.global_samples, self.step)

    def enter(self, source: object) -> EnclosingPass:
        """Begin a pass over ``source``; return where."""
        self._passes[source] += 1
        return self.share, self._source

    def reads_others(self, source: object) -> bool:
        """Tell whether there are passes over others than ``source``."""
        return any(other is not source for other in self._passes)

    def leave(self, source: object, outside: EnclosingPass) -> None:
        """End a pass over ``source``, which began ``outside`` of it; what is over stays so.

        If not, that goes on: the next pass within it begins there, too.
        """
        self.accumulation.last = False
        self._passes -= Counter([source])  # which forgets what none is left of
        share, outer = outside
        goes_on = self._passes[outer] > 0
        self.share, self._source = (share, outer) if goes_on else (None, self._source)

    def note_backward(self, losses: ReadableLosses | None) -> None:
        """Count a backward pass and put its loss on the curve."""
        if self.backwards == 0 and self.distributes and self._has_user_hooks():
            self.recorder.notice("tensor-hooks", notices.TENSOR_HOOKS)
        self.backwards += 1
        if self.share is None:
            self.step += 1
        else:
            self.walk.update(b"%d," % self.step)
        self.pace.end_backward(self.step)
        if losses is not None and self.draws_losses:
            weight = self.share.weight if self.share else 1.0
            self.recorder.metric(losses.name, self.step, losses.logged.detach(), weight)

    def agree_on_divisors(
        self, kinds: tuple[str, ...], found: Sequence[Divisor], counts: bool
    ) -> list[Meaning]:
        """Tell what numbers mean that divide sums in a loss; collective where a batch is cut."""
        alone = [divisor.local_meaning for divisor in found]
        if not self.distributes or not self.split_passes:
            return alone
        # Whatever share this rank has: of batches that are read ahead, ranks may have taken this
        # step for one on different ones.
        share, certain = self.share, not (self.ahead.is_prefetching or self._watches_inputs)
        even = share is not None and self.batch == "global" and share.is_even(self.dp_size)
        cut = share is not None and share.is_partial
        loss = (*kinds, self.backwards - self._taken_at)
        meanings = self.divisors.agree(loss, found if cut else (), counts, even and certain)
        return meanings if cut else alone

    def doubt(self, graph: LossGraph) -> None:
        """Look into whether a loss has no single weight; tell the user if so.

        The answer may lie on a device; it is fetched for many steps at once.
        """
        self.chances.add(graph)
        if graph.unknown_function:
            compiled = "Compiled" in graph.unknown_function
            text = notices.COMPILED_LOSS if compiled else notices.UNREAD_LOSS
            self.recorder.notice("unread-loss", text.format(function=graph.unknown_function))
        if self.joined and graph.averages_other_rows and "mean" in graph.kinds:
            self.recorder.notice("joined", notices.CONCATENATED_SAMPLES)
        doubt, share = graph.needs_different_weights(), self.share
        loaders = self.recorder.has_notice("two-loaders")  # that says it, too
        if share is not None and not share.is_padding and not loaders:
            uneven = not share.is_even(self.dp_size)
            doubt = (uneven and graph.mixes_counts(share.samples)) or doubt
            # What is always as much, whatever the samples are, weighs alike on all ranks.
            if rows := graph.other_row_counts(share.samples):
                key = share.samples, len(graph.nodes)
                doubt = self._rows_of_others.setdefault(key, rows) != rows or doubt
        if doubt is not False:
            self._doubts.append(doubt)
        if len(self._doubts) >= 50:
            self.settle_doubts()

    def note_loss(self, graph: LossGraph) -> None:
        """Remember how the loss reduces, to be compared with other ranks' in the end.

        A single sample, or none, may show otherwise; so may numbers that are sizes by chance.
        """
        share, self.adds_up = self.share, graph.reduction == "sum"
        if share is None or not share.is_partial:
            return
        if share.is_padding or share.samples == 1 or graph.divisions.numbers:
            self.losses_known = False
        self.reductions.update(graph.reduction.encode())

    def doubt_vector(self) -> None:
        """Tell the user that a backward pass begins at several elements."""
        if self.share is not None and self.share.is_partial:
            self.recorder.notice("vector-loss", notices.VECTOR_LOSS)

    def settle_doubts(self) -> None:
        """Fetch the answers gathered by ``doubt``."""
        doubts, self._doubts = self._doubts, []
        if any(bool(doubt) for doubt in doubts):
            self.recorder.notice("mixed-loss", notices.MIXED_LOSS)

    def note_step(self, optimizer: Any) -> None:
        """Put the learning rate of an optimizer step on a curve, and count it against a limit."""
        self._note_same_batch(optimizer)
        if self.budget.on and self.budget.note(optimizer, self):
            self.stopwatch.mark(self.samples)
            self.recorder.progress(
                "steps", label="steps", step=self.budget.taken, total=self.budget.limit
            )
        number = self._optimizer_number(optimizer)
        if number is not None:
            name = "lr" if number == 0 else f"lr {number + 1}"
            self.recorder.metric(name, self.step, optimizer.param_groups[0].get("lr", 0.0))

    def _note_same_batch(self, optimizer: Any) -> None:
        """Say it if an optimizer steps again on a batch that was taken by hand, and it matters."""
        share, iterates_manually = self.share, getattr(self._source, "iterates_manually", False)
        again = id(optimizer) in self._stepped
        self._stepped.add(id(optimizer))
        if not again or not iterates_manually or share is None or not share.is_partial:
            return
        if self.adds_up or not share.is_even(self.dp_size):
            self.recorder.notice("same-batch", notices.SAME_BATCH)

    def _optimizer_number(self, optimizer: Any) -> int | None:
        known = [o for unit in self.units for o in unit.optimizers]
        return next((i for i, other in enumerate(known) if other is optimizer), None)

    def worked_alone(self) -> bool:
        """Whether the cell trained, and no rank was spared any of the work."""
        return self.distributes and self.backwards > 0 and self.split_passes == 0

    def split_in_vain(self) -> bool:
        """Whether a loader was split, and nothing was trained in a pass over it."""
        self.batch_in_use.flush()
        return self.untrained

    def close(self) -> None:
        """Take everything off the user's objects and say what is left to say."""
        self.batch_in_use.flush()
        for split in self.loaders.sharded_loaders.values():
            split.report_remaining_draws()
        self.settle_doubts()
        self.batch_dependence.close()
        self.strategy.release()
        self.shaping.release()

    def log(self, values: dict[str, Any]) -> None:
        """Record metrics of the user at the current step, weighed by the share.

        Where nothing trains, a step is a call.

        Raises:
            TypeError: a value is not one number; none is recorded then.
        """
        weight = self.share.weight if self.share else 1.0
        with self.batch_dependence.paused():
            for name, value in check_metrics(values).items():
                self.recorder.metric(name, self.step or self._logged[name], value, weight)
                self._logged[name] += 1


current: Session | None = None
