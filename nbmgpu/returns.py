"""What a run brings home: rank 0's results into the notebook's objects, the others' beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from . import rng, tracking
from .agreement import differing
from .bundle import VALUE, Shipment, UnreadableError, adopt, read_copies
from .errors import ResultsError, compose
from .headers import ReturnedHeader
from .options import RunOptions
from .run import Run
from .tracking import LeftRun

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
        value, sent, kept, left = self._adopt()
        self._read_others(sent | kept)
        try:
            tracking.take(left)
        except Exception as error:  # of wandb: everything else has come home
            self.note("wandb", f"The run of wandb is not as the cell has left it: {error!r}.")
        return value

    def _adopt(self) -> tuple[Any, dict[str, Any], dict[str, Any], LeftRun | None]:
        """Return the value of the last line, what names stand for on rank 0, and wandb's run.

        They stand for what was bound there, or for what of the notebook's they have always stood.
        """
        try:
            returned = adopt(self.run.record.results[0], self.shipment)
        except UnreadableError as error:
            if self.run.state != "finished":  # the failure says why there is no result
                return None, {}, {}, None
            what = f"The cell ran to its end, but what it made could not be brought back: {error}"
            allowed = "The notebook is as it was before"
            instead = "the cell again with more memory free, or --pull with the names you need"
            raise ResultsError(compose(what, allowed, instead)) from error
        for name, reason in {**returned.lost, **returned.refused}.items():
            what = "The value of the last line" if name == VALUE else f"`{name}`"
            self.note(f"lost:{name}", f"{what} did not come back: {reason}.")
        values = dict(returned.values)
        last_line = {VALUE: values.pop(VALUE)} if VALUE in values else {}
        wanted = self.options.pull
        header: ReturnedHeader = returned.header
        names, sent = header.kept, self.shipment.values
        # What the cell has only read may have got another value in the notebook meanwhile.
        late = {n for n in names if n in sent and self.namespace.get(n) is not sent[n]}
        bound = {n: v for n, v in values.items() if n not in late if wanted is None or n in wanted}
        self._note_missing(wanted or (), {*values, *names})
        kept = {n: sent[n] for n in names if n in sent and n not in values}
        before = {name: self.namespace.get(name) for name in bound}
        self.namespace.update(bound)
        for name in header.deleted:
            self.namespace.pop(name, None)
        rng.go_on(header.random, since=self.shipment.header.random)
        new = {n: v for n, v in bound.items() if before[n] is not v}
        self.run.results[0] = new | last_line
        return last_line.get(VALUE), values, kept, header.tracked

    def _note_missing(self, wanted: Iterable[str], values: set[str]) -> None:
        for name in wanted:
            if name not in values:
                self.note(f"missing:{name}", f"--pull {name}: the cell did not bind `{name}`.")

    def _read_others(self, sent: dict[str, Any]) -> None:
        """Read what the other ranks hold, and say which values are rank 0's alone."""
        for rank, path in enumerate(self.run.record.results[1:], start=1):
            try:
                self.run.results[rank] = read_copies(path, self.namespace)
            except Exception:  # none, or a constructor that needs what only ranks have
                continue
        if self.run.state != "finished":
            return  # ranks that stopped somewhere differ for that reason
        unsure = self.options.strategy == "none" or "reads-ahead" in self.run.view.notices
        if self.run.view.walked_apart and not unsure:
            self.note("walked-apart", WALKED_APART)
        elif self.run.view.chose_apart and not unsure:
            self.note("branches", BRANCHES)
        elif self.run.view.came_apart and self.options.strategy != "none":
            self.note("came-apart", CAME_APART)
        own = self.run.results.setdefault(0, {})
        others = [values for rank, values in self.run.results.items() if rank]
        own |= self._own_objects(others, sent)
        names = differing({n: v for n, v in own.items() if n != VALUE}, others)
        if names and self.options.strategy != "none":
            listed = ", ".join(f"`{name}`" for name in names)
            self.note(
                "rank-0-values",
                f"{listed}: rank 0's own value, other ranks hold another (their share of the "
                "data, or their clock). All of them, until the next run: nbmgpu.last_run.results",
            )

    def _own_objects(
        self, others: Iterable[dict[str, Any]], sent: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the notebook's own objects, as they are now, of which ``others`` bring copies."""
        brought = {name for values in others for name in values}
        shipped = {n: v for n, v in self.shipment.values.items() if n in brought}
        return {name: value for name, value in shipped.items() if sent.get(name) is value}
