"""Writes results back: rank 0's into the notebook's objects, the others' into ``run.results``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbmgpu.environment import module_state, random_state
from nbmgpu.environment.headers import RankPart, ResultHeader, SampleDims
from nbmgpu.errors import ResultsError, format_message
from nbmgpu.options.run_options import RunOptions
from nbmgpu.runs.run import Run
from nbmgpu.serialization import (
    RANK_PART,
    STAYS,
    VALUE,
    Bundle,
    RestoredResult,
    UnreadableError,
    read_copies,
    restore_result,
)
from nbmgpu.serialization.joined_parts import join_names
from nbmgpu.trackers import registry as trackers

from . import unread_memory
from .rank_agreement import differing_names

DIFFERENT_BATCHES = (
    "Ranks trained on different batches: the cell skipped some because of their content, and each "
    "rank sees only its own shard. So the steps were not those of one device. Skip batches by "
    "their number, or multiply the loss by 0 instead."
)

DIFFERENT_REDUCTIONS = (
    "In one step the losses of some ranks were means and those of others sums: the cell chooses "
    "the loss by the content of the batch, and each rank sees only its own shard. So the step was "
    "not that of one device. Multiply by a mask, which gives 0 where nothing is left, instead of "
    "an `if`."
)

DIFFERENT_NUMBERS = (
    "In one step, ranks computed with different numbers, which the cell reads off arrays or lists "
    "of the batch (`.numpy()`, `.tolist()`), or decided differently (`if mask.any():`), as each "
    "rank has its shard. So the step may not be that of one device. Compute with tensors, or "
    "before the loop."
)

DIFFERENT_WEIGHTS = (
    "The ranks' models have diverged: at the end they had other weights than rank 0, whose weights "
    "the notebook has. The cell has set some of them by what each rank has for itself: its shard "
    "of a batch (first values taken from the data, codebooks, loss / max(1, count)), or random "
    "numbers drawn between backward() and step(). Set them before the loop, from all of the data, "
    "or by a torch.Generator with a seed of its own."
)

OF_SHARD = (
    "the value is rank 0's, of its shard of the data (a time: its clock); one device would have "
    "another one, and so have other ranks (nbmgpu.last_run.results, until the next run). For those "
    "of one device: %%mgpu --exact always."
)

OF_RANK = (
    "the value is rank 0's, and other ranks have another one (nbmgpu.last_run.results, until the "
    "next run). Each rank has the whole batch, so this is a time, a number of the machine, or "
    "rounding that has grown."
)

MAX_NAMED_BUFFERS = 3
"""Buffers that a notice names."""

DIFFERENT_BUFFERS = (
    "{names}: at the end other ranks had other values there than rank 0, whose values the notebook "
    "has. Ranks average what is written into a model's buffers after each backward pass, but not a "
    "tensor that forward() assigns in place of one (`self.centre = ...`: write into it, "
    "`self.centre.copy_(...)`), nor what is written after the last pass (by a forward pass in "
    "training mode), nor integers."
)


@dataclass(frozen=True)
class RankZeroResult:
    """What rank 0 has returned, as the notebook has it now.

    Attributes:
        value: of the cell's last line.
        names: the objects of names on rank 0: those that the cell bound, and those that the
            notebook has sent and the cell has left bound.
        tracked: the notebook's runs of trackers, as the cell has left them.
        held: memo indices of the notebook's objects that stay in the ranks.
        held_names: names of what the cell has made that stays there.
        held_bytes: bytes of models and optimizer states in rank 0.
    """

    value: Any = None
    names: dict[str, Any] = field(default_factory=dict)
    tracked: dict[str, Any] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)
    held_names: list[str] = field(default_factory=list)
    held_bytes: int = 0


@dataclass(frozen=True)
class WriteBack:
    """Writes the results of a run that is over into the notebook.

    Attributes:
        run: the run.
        bundle: what was sent to the ranks, with the notebook's own objects.
        namespace: the notebook's names.
        options: the options of the run.
        loop_targets: names whose values after the cell are of no interest.
        notice: emits a notice about the results: a topic and a sentence.
    """

    run: Run
    bundle: Bundle
    namespace: dict[str, Any]
    options: RunOptions
    loop_targets: frozenset[str]
    notice: Callable[[str, str], None]

    def apply(self) -> RankZeroResult:
        """Update the notebook's objects and ``run.results``; return what rank 0 has returned.

        Raises:
            ResultsError: the cell ran to its end, and its results are lost.
        """
        restored = self._restore()
        rank_0 = RankZeroResult() if restored is None else self._bind(restored)
        others = self._read_others()
        if restored is not None and self.run.state == "finished":
            header, own = restored.header, self.run.results[0]
            parts = {name: dims for name, dims in header.batch_parts.items() if name in own}
            joined = self._join_batches(parts, others)
            different = self._differing_names(rank_0.names, header, others)
            named = [n for n in different if n not in {*self.loop_targets, *parts}]
            self._compare_ranks([*named, *(n for n in parts if n not in joined)])
        elif restored is not None:
            self._notice_parts([n for n in restored.header.batch_parts if n in rank_0.names])
        for name, error in trackers.write_back(rank_0.tracked):
            what = f"The run of {name} is not as the cell has left it"
            self.notice(f"tracker:{name}", f"{what}: {error!r}.")
        if text := unread_memory.notice_text(self.run, self.bundle, self.namespace):
            self.notice("unread-gpu-memory", text)
        return rank_0

    def _restore(self) -> RestoredResult | None:
        """Update the notebook's objects in place; return None if a failure left no result."""
        try:
            restored = restore_result(self.run.record.storage.results[0], self.bundle)
        except UnreadableError as error:
            if self.run.state != "finished":  # the failure explains why there is no result
                return None
            what = f"The cell ran to its end, but what it made could not be brought back: {error}"
            allowed = "The notebook is as it was before"
            instead = "the cell again with more memory free, or --pull with the names you need"
            raise ResultsError(format_message(what, allowed, instead)) from error
        for name, reason in {**restored.lost, **restored.refused}.items():
            if reason.endswith(STAYS) and name != VALUE:
                continue  # the notice about the ranks names it
            what = "The value of the last line" if name == VALUE else f"`{name}`"
            self.notice(f"lost:{name}", f"{what} did not come back: {reason}.")
        return restored

    def _bind(self, restored: RestoredResult) -> RankZeroResult:
        """Bind the notebook's names to the objects that rank 0 had under them."""
        header: ResultHeader = restored.header
        values, sent = dict(restored.values), self.bundle.values
        last_line = {VALUE: values.pop(VALUE)} if VALUE in values else {}
        self._notice_missing({*values, *header.kept})
        kept = [name for name in header.kept if name in sent]
        # In a background run, the notebook may have rebound meanwhile what the cell only read.
        late = {name for name in header.kept if name in values and not self._is_as_sent(name)}
        bound = {n: v for n, v in values.items() if n not in late and self._is_wanted(n)}
        new = {n: v for n, v in bound.items() if self.namespace.get(n) is not v}
        self.namespace.update(bound)
        for name in header.deleted:
            self.namespace.pop(name, None)
        module_state.apply(header.modules)
        header.process.apply()
        random_state.restore_unchanged(header.random, since=self.bundle.header.random)
        self.run.results[0] = new | last_line
        names = {name: sent[name] for name in kept} | values
        stay = [name for name, reason in restored.lost.items() if reason.endswith(STAYS)]
        return RankZeroResult(
            last_line.get(VALUE), names, header.tracked, header.held,
            [name for name in stay if name.isidentifier() and name != VALUE], header.held_bytes,
        )  # fmt: skip

    def _is_as_sent(self, name: str) -> bool:
        """Return whether ``name`` is still bound to the object that was sent."""
        now, sent = self.namespace.get(name), self.bundle
        if name in sent.values:
            return now is sent.values[name]
        return any(now is original for original in sent.originals.values())

    def _is_wanted(self, name: str) -> bool:
        return self.options.pull is None or name in self.options.pull

    def _notice_missing(self, values: set[str]) -> None:
        for name in self.options.pull or ():
            if name not in values:
                self.notice(f"missing:{name}", f"--pull {name}: the cell did not bind `{name}`.")

    def _read_others(self) -> list[RankPart]:
        """Read the small values of the other ranks; return what they have sent besides."""
        found = []
        for rank, path in enumerate(self.run.record.storage.results[1:], start=1):
            try:
                values = read_copies(path, self.namespace)
            except Exception:  # none, or a constructor that needs what only ranks have
                found.append(RankPart(-rank, None))
                continue
            found.append(values.pop(RANK_PART, RankPart(-rank, None)))
            self.run.results[rank] = values
        return found

    def _join_batches(
        self, names: dict[str, SampleDims | None], others: list[RankPart]
    ) -> dict[str, Any]:
        """Bind ``names``, which hold a part of the last batch, to the whole; see ``join_names``."""
        if self.run.view.trained_on_different_batches:
            return {}
        parts: dict[int, dict[str, Any] | None] = {}
        for other in others:
            if other.dp_rank:  # else its samples are those of rank 0
                parts.setdefault(other.dp_rank, other.batch)
        joined = join_names(names, self.run.results.get(0, {}), parts)
        self.namespace.update({n: value for n, value in joined.items() if self._is_wanted(n)})
        return joined

    def _notice_parts(self, names: list[str]) -> None:
        """Report which names hold rank 0's part of a batch, after a run that was stopped."""
        if names:
            listed = ", ".join(f"`{name}`" for name in names)
            self.notice(
                "part-of-batch-left",
                f"{listed}: rank 0's part of the last batch, because the cell did not reach its "
                "end; one device would have the whole batch. The parts of other ranks: "
                "nbmgpu.last_run.results, until the next run.",
            )

    def _differing_names(
        self, on_rank_0: dict[str, Any], header: ResultHeader, others: list[RankPart]
    ) -> list[str]:
        """Return the names for which some other rank has another value than rank 0.

        Args:
            on_rank_0: see ``RankZeroResult.names``.
            header: what else rank 0 has returned.
            others: what the other ranks have.
        """
        own = self.run.results[0]
        values = [values for rank, values in self.run.results.items() if rank]
        own |= self._own_objects(values, on_rank_0)
        different = differing_names({n: v for n, v in own.items() if n != VALUE}, values)
        of_large = differing_names(header.summaries, [other.summaries for other in others])
        kept = self._own_objects([header.summaries], on_rank_0)
        of_modules = differing_names(
            module_state.values_by_path(header.modules),
            [module_state.values_by_path(other.modules) for other in others],
        )
        large = [name for name in of_large if name in own or name in kept]
        return [*different, *large, *of_modules]

    def _compare_ranks(self, named: list[str]) -> None:
        """Report what differs between ranks: besides their models, what these names hold."""
        manual = self.options.strategy == "none"  # ranks may differ on purpose
        unreliable = manual or "prefetched-batches" in self.run.view.notices
        if self.run.view.trained_on_different_batches and not unreliable:
            self.notice("different-batches", DIFFERENT_BATCHES)
        elif self.run.view.losses_reduce_differently and not unreliable:
            self.notice("different-reductions", DIFFERENT_REDUCTIONS)
        elif self.run.view.numbers_differ and not unreliable:
            self.notice("different-numbers", DIFFERENT_NUMBERS)
        elif self.run.view.weights_differ and not manual:
            self.notice("different-weights", DIFFERENT_WEIGHTS)
        elif (buffers := self.run.view.differing_buffers) and not manual:
            names = ", ".join(f"`{name}`" for name in buffers[:MAX_NAMED_BUFFERS])
            more = (
                f" and {len(buffers) - MAX_NAMED_BUFFERS} more"
                if len(buffers) > MAX_NAMED_BUFFERS
                else ""
            )
            self.notice("different-buffers", DIFFERENT_BUFFERS.format(names=names + more))
        if named and not manual:
            listed = ", ".join(f"`{name}`" for name in named)
            text = OF_RANK if self.options.exact == "always" else OF_SHARD
            self.notice("rank-0-values", f"{listed}: {text}")

    def _own_objects(
        self, others: Iterable[Mapping[str, Any]], on_rank_0: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the notebook's own objects, as they are now, of which ``others`` have copies."""
        copied = {name for values in others for name in values}
        sent = {n: v for n, v in self.bundle.values.items() if n in copied}
        return {name: value for name, value in sent.items() if on_rank_0.get(name) is value}
