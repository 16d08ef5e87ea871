"""What a run brings home: rank 0's results into the notebook's objects, the others' beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from nbmgpu.environment import random_state, tracker_run
from nbmgpu.environment.headers import ReturnedHeader
from nbmgpu.environment.tracker_run import LeftRun
from nbmgpu.errors import ResultsError, compose
from nbmgpu.options.run_options import RunOptions
from nbmgpu.runs.run import Run
from nbmgpu.serialization import VALUE, Returned, Shipment, UnreadableError, adopt, read_copies

from .rank_agreement import differing

WALKED_APART = (
    "Ranks trained on different batches: the cell left some out by what is in them, and each rank "
    "sees its own share only. So steps were not one device's. Leave batches out by their number, "
    "or multiply the loss by 0 instead."
)

BRANCHES = (
    "In a step the losses of some ranks were means and those of others sums: the cell chooses the "
    "loss by what is in the batch, and each rank sees its own share only. So the step was not one "
    "device's. Multiply by a mask, which gives 0 where nothing is left, instead of an `if`."
)


CAME_APART = (
    "Ranks' models have come apart: in the end they had other weights than rank 0, whose weights "
    "the notebook has. The cell has set some of them by what each rank has for itself: its share "
    "of a batch (first values taken from the data, codebooks, loss / max(1, count)), or random "
    "numbers drawn between backward() and step(). Set them before the loop, from all of the data, "
    "or by a torch.Generator with a seed of its own."
)

FEW = 3
"""Buffers that are named."""

BUFFERS_APART = (
    "{names}: in the end other ranks had other values there than rank 0, whose values the notebook "
    "has. Ranks average what is written into a model's buffers after each backward pass, but not a "
    "tensor that forward() puts in the place of one (`self.centre = ...`: write into it, "
    "`self.centre.copy_(...)`), nor what is written after the last pass (by a forward pass in "
    "training mode), nor whole numbers."
)


@dataclass(frozen=True)
class Brought:
    """What rank 0 has brought home.

    Attributes:
        value: of the cell's last line.
        names: what names stand for on rank 0: what was bound there, or what of the notebook's
            they have always stood for.
        tracked: the notebook's run of wandb, as the cell has left it.
    """

    value: Any = None
    names: dict[str, Any] = field(default_factory=dict)
    tracked: LeftRun | None = None


@dataclass(frozen=True)
class Returns:
    """The results of a run that is over, and the notebook that has sent what they are made of.

    ``note`` takes what has to be said about them: a topic and a sentence.
    """

    run: Run
    shipment: Shipment
    namespace: dict[str, Any]
    options: RunOptions
    note: Callable[[str, str], None]

    def take(self) -> Any:
        """Put them into the notebook and ``run.results``; return the value of the last line.

        Raises:
            ResultsError: the cell ran to its end, and its results are lost.
        """
        returned = self._read()
        brought = Brought() if returned is None else self._bind(returned)
        self._read_others(brought.names)
        try:
            tracker_run.take(brought.tracked)
        except Exception as error:  # of wandb: everything else has come home
            self.note("wandb", f"The run of wandb is not as the cell has left it: {error!r}.")
        return brought.value

    def _read(self) -> Returned | None:
        """Bring the notebook's objects into their new state; None if the cell has failed before."""
        try:
            returned = adopt(self.run.record.results[0], self.shipment)
        except UnreadableError as error:
            if self.run.state != "finished":  # the failure says why there is no result
                return None
            what = f"The cell ran to its end, but what it made could not be brought back: {error}"
            allowed = "The notebook is as it was before"
            instead = "the cell again with more memory free, or --pull with the names you need"
            raise ResultsError(compose(what, allowed, instead)) from error
        for name, reason in {**returned.lost, **returned.refused}.items():
            what = "The value of the last line" if name == VALUE else f"`{name}`"
            self.note(f"lost:{name}", f"{what} did not come back: {reason}.")
        return returned

    def _bind(self, returned: Returned) -> Brought:
        """Let the notebook's names stand for what they stood for on rank 0."""
        header: ReturnedHeader = returned.header
        values, shipped = dict(returned.values), self.shipment.values
        last_line = {VALUE: values.pop(VALUE)} if VALUE in values else {}
        self._note_missing({*values, *header.kept})
        kept = [name for name in header.kept if name in shipped]
        # What the cell has only read may have got another value in the notebook meanwhile.
        late = {name for name in header.kept if name in values and not self._is_as_sent(name)}
        bound = {n: v for n, v in values.items() if n not in late and self._is_wanted(n)}
        new = {n: v for n, v in bound.items() if self.namespace.get(n) is not v}
        self.namespace.update(bound)
        for name in header.deleted:
            self.namespace.pop(name, None)
        random_state.go_on(header.random, since=self.shipment.header.random)
        self.run.results[0] = new | last_line
        names = {name: shipped[name] for name in kept} | values
        return Brought(last_line.get(VALUE), names, header.tracked)

    def _is_as_sent(self, name: str) -> bool:
        """Tell whether ``name`` still stands for what it did, or what functions read under it."""
        now, shipped = self.namespace.get(name), self.shipment
        if name in shipped.values:
            return now is shipped.values[name]
        return any(now is original for original in shipped.originals.values())

    def _is_wanted(self, name: str) -> bool:
        return self.options.pull is None or name in self.options.pull

    def _note_missing(self, values: set[str]) -> None:
        for name in self.options.pull or ():
            if name not in values:
                self.note(f"missing:{name}", f"--pull {name}: the cell did not bind `{name}`.")

    def _read_others(self, on_rank_0: dict[str, Any]) -> None:
        """Read what the other ranks hold, and say which values are rank 0's alone."""
        for rank, path in enumerate(self.run.record.results[1:], start=1):
            try:
                self.run.results[rank] = read_copies(path, self.namespace)
            except Exception:  # none, or a constructor that needs what only ranks have
                continue
        if self.run.state != "finished":
            return  # ranks that stopped somewhere differ for that reason
        by_hand = self.options.strategy == "none"  # ranks may do as they like
        unsure = by_hand or "reads-ahead" in self.run.view.notices
        if self.run.view.walked_apart and not unsure:
            self.note("walked-apart", WALKED_APART)
        elif self.run.view.chose_apart and not unsure:
            self.note("branches", BRANCHES)
        elif self.run.view.came_apart and not by_hand:
            self.note("came-apart", CAME_APART)
        elif (buffers := self.run.view.parted_buffers) and not by_hand:
            names = ", ".join(f"`{name}`" for name in buffers[:FEW])
            more = f" and {len(buffers) - FEW} more" if len(buffers) > FEW else ""
            self.note("buffers-apart", BUFFERS_APART.format(names=names + more))
        own = self.run.results.setdefault(0, {})
        others = [values for rank, values in self.run.results.items() if rank]
        own |= self._own_objects(others, on_rank_0)
        apart = differing({n: v for n, v in own.items() if n != VALUE}, others)
        if apart and not by_hand:
            listed = ", ".join(f"`{name}`" for name in apart)
            self.note(
                "rank-0-values",
                f"{listed}: rank 0's own value, other ranks hold another (their share of the "
                "data, or their clock). All of them, until the next run: nbmgpu.last_run.results",
            )

    def _own_objects(
        self, others: Iterable[dict[str, Any]], on_rank_0: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the notebook's own objects, as they are now, of which ``others`` bring copies."""
        brought = {name for values in others for name in values}
        shipped = {n: v for n, v in self.shipment.values.items() if n in brought}
        return {name: value for name, value in shipped.items() if on_rank_0.get(name) is value}
