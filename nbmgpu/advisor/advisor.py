"""From a model to an advice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nbmgpu.devices.probe import Machine
from nbmgpu.devices.requirements import missing_requirement
from nbmgpu.errors import OptionError, StrategyError, format_message
from nbmgpu.formatting import format_count, format_bytes
from nbmgpu.options.values import GpuRequest
from nbmgpu.options.run_options import RunOptions
from nbmgpu.strategies import profile_of, strategy_names

from . import available_memory, memory_model, recommendation, speed_model
from .advice import Advice, Estimate, Part
from .speed_model import Speed

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from nbmgpu.strategies.strategy_options import Precision

    from .activations import Activations
    from .fsdp_units import Units

ROWS_BESIDE = {"fsdp": ("fsdp --cpu-offload",)}
"""Options that make another row of a strategy."""


@dataclass(frozen=True)
class Question:
    """What is asked of the same model again and again: ``RunOptions`` has the same names.

    ``memory`` is what each of ``gpus`` GPUs has free, on a machine that is not this one;
    ``beside`` what else a cell's line asks for.
    """

    gpus: GpuRequest = None
    precision: Precision | None = None
    accumulate: int = 1
    checkpointing: bool = False
    batch: Literal["global", "per-rank"] = "global"
    cpu: bool = False
    memory: float | str | None = None
    beside: RunOptions | None = None

    @classmethod
    def of(cls, options: RunOptions) -> Question:
        """Ask about a run with ``options``."""
        shared = {f.name for f in dataclasses.fields(options)} & {
            f.name for f in dataclasses.fields(cls)
        }
        return cls(**{name: getattr(options, name) for name in shared}, beside=options)

    def options(self, strategy: str | None = None, **more: Any) -> RunOptions:
        """Return the options of a run under ``strategy``, by default that of the cell's line.

        Raises:
            OptionError: one has a wrong value, or the strategy cannot have it.
        """
        asked = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del asked["memory"], asked["beside"]
        beside = self.beside or RunOptions()
        return dataclasses.replace(beside, strategy=strategy or beside.strategy, **asked | more)


def advise(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    batch: Any = None,
    *,
    loader: DataLoader[Any] | None = None,
    gpus: GpuRequest = None,
    precision: Precision | None = None,
    accumulate: int = 1,
    checkpointing: bool = False,
    memory: float | str | None = None,
) -> Advice:
    """Say which strategy to train ``model`` with on this machine, and why.

    Nothing is run and nothing of the model changes.  It may lie on the ``meta`` device, so
    that a model of any size is asked about without having it.

    Args:
        model: what is to be trained.
        optimizer: its optimizer; Adam is assumed without one.
        batch: a batch as the loader gives it, of all ranks together; or ``(samples, tokens)``
            for a language model; or the DataLoader.  Activations are counted with it.
        loader: where a batch can be had from, instead.
        gpus: how many, or which, as for ``--gpus``.
        precision: as for ``--precision``.
        accumulate: as for ``--accumulate``.
        checkpointing: whether activations are recomputed.
        memory: what each of ``gpus`` GPUs has free (``"80 GB"``), to ask about a machine that
            is not this one.

    Returns:
        What to take, and what each strategy would hold and cost; a notebook shows it as a table.

    Raises:
        OptionError: an argument has a wrong value, or there are not so many devices.
    """
    consultation = Consultation(model, optimizer, batch, loader)
    return consultation.advise(Question(gpus, precision, accumulate, checkpointing, memory=memory))


def catalogue(question: Question, there: Machine | None = None) -> Advice:
    """Return what there is to choose from while no model is known: no memory, no torch."""
    room = available_memory.look(question.options(), there)
    rows = []
    for name in strategy_names():
        profile = profile_of(name)
        line, why = line_of(name, name, question, room.ranks)
        about = Speed(None, None, "unknown", "it depends on the model")
        rows.append(
            Estimate(name, profile.summary, (), 0, 0, "unknown" if line else "no", why, about,
                     profile.costs, "", line)
        )  # fmt: skip
    reason = "Without a model to look at, ddp is where to begin: it is the plainest."
    line = line_of("ddp", "ddp", question, room.ranks)[0]
    return Advice(
        "", room.words, room.ranks, room.free, tuple(rows), "ddp", reason, line, None, room.notes
    )


def line_of(name: str, strategy: str, question: Question, ranks: int) -> tuple[str, str]:
    """Return the line that asks for a row of ``strategy``, or why it cannot be had."""
    if lack := missing_requirement(profile_of(strategy)):
        return "", f"needs {lack.needed}: %pip install {lack.install}"
    more: dict[str, Any] = {"cpu_offload": True} if name != strategy else {}
    asked = dataclasses.replace(question, gpus=ranks if question.gpus is None else question.gpus)
    try:
        return asked.options(strategy, **more).command, ""
    except OptionError as error:
        first = str(error).partition("\n")[0]
        return "", (first.partition(": ")[2] or first).rstrip(".")


class Consultation:
    """One model, looked at once and asked about often."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        batch: Any = None,
        loader: DataLoader[Any] | None = None,
    ) -> None:
        """Count ``model`` and ``optimizer``; a batch comes from ``batch`` or ``loader``."""
        check(model, optimizer)
        from .model_size import count

        self.model = model
        self.optimizer = optimizer
        self.counted = count(model, optimizer)
        self._found: dict[tuple[str, ...], Units] = {}
        self.batch, self.samples, self.why_not = _batch_of(batch, loader)
        self._played: dict[Any, Activations | None] = {}
        self._refused = _refused_by_optimizer(optimizer)

    def advise(self, question: Question, there: Machine | None = None) -> Advice:
        """Answer ``question``, on the machine ``there`` or on this one."""
        room = self._room(question, there)
        case = self._case(question, room)
        rows = self._rows(question, case, room)
        again: list[Estimate] = []
        recomputing = dataclasses.replace(question, checkpointing=True)
        if not question.checkpointing and not recommendation.on_devices(rows, "fits"):
            again = self._rows(recomputing, self._case(recomputing, room), room)
        choice = self._choice(rows, again, case, room)
        taken = recomputing if choice.checkpointing else question
        line, largest = "", None
        if choice.name:
            chosen = _row_of(choice, again if choice.checkpointing else rows)
            rows = [chosen if row.name == chosen.name else row for row in rows]
            line, largest = chosen.line, self._largest(chosen, taken, room)
        return Advice(
            model=self._described(),
            where=room.words,
            ranks=room.ranks,
            free=room.free,
            rows=tuple(rows),
            recommended=choice.name,
            reason=choice.reason,
            line=line,
            largest_batch=largest,
            notes=tuple(self._notes(self._case(taken, room), room)),
        )

    def _choice(
        self,
        rows: list[Estimate],
        again: list[Estimate],
        case: memory_model.Case,
        room: available_memory.Room,
    ) -> recommendation.Choice:
        if not self.counted.trained:
            return recommendation.NOTHING_TRAINS
        return recommendation.choose(rows, case, room.free, again, self.batch is not None)

    def _largest(
        self, chosen: Estimate, question: Question, room: available_memory.Room
    ) -> int | None:
        """Return how many samples of all ranks fit for sure, taken as ``question`` says."""
        case = self._case(question, room)
        high_of = self._high_of(chosen.name, question, case)
        return recommendation.largest_batch(chosen, case, room.free, high_of)

    def _room(self, question: Question, there: Machine | None) -> available_memory.Room:
        if question.memory is None:
            return available_memory.look(question.options(), there)
        if not isinstance(question.gpus, int) or question.gpus < 1:
            what = "memory= is about a machine that is not this one"
            raise OptionError(format_message(what, "It goes with a number of GPUs", "gpus=8"))
        question.options()  # is checked as ever
        return available_memory.imagined(question.gpus, question.memory)

    def _case(self, question: Question, room: available_memory.Room) -> memory_model.Case:
        return memory_model.Case(
            counted=self.counted,
            units=self._units(question.beside.fsdp_units if question.beside else ()),
            activations=self._activations(question, room.ranks),
            ranks=room.ranks,
            on_gpu=room.on_gpu,
            accumulate=question.accumulate,
            precision=question.precision,
        )

    def _units(self, named: tuple[str, ...]) -> Units:
        """Return the pieces in which the model is gathered, with the classes ``named``."""
        from .fsdp_units import find_units

        if named not in self._found:
            try:
                self._found[named] = find_units(self.model, named)
            except StrategyError as error:  # the model has no such class
                raise OptionError(str(error)) from None
        return self._found[named]

    def _activations(self, question: Question, ranks: int) -> Activations | None:
        """Return what a rank's step holds."""
        if self.batch is None:
            return None
        samples = self.samples if question.batch == "per-rank" else -(-self.samples // ranks)
        return self._of(samples, question.precision, question.checkpointing)

    def _of(
        self, samples: int, precision: Precision | None, checkpointing: bool
    ) -> Activations | None:
        """Return what a step of so many samples holds; played once for each kind of step."""
        key = samples, precision, checkpointing
        if key not in self._played:
            self._played[key] = self._play(*key)
        return self._played[key]

    def _high_of(
        self, name: str, question: Question, case: memory_model.Case
    ) -> Callable[[int], float] | None:
        """Return what tells how many bytes samples take under ``name``, if that is soon known."""
        if case.activations is None or case.activations.drawn_out:
            return None

        def high(samples: int) -> float:
            played = self._of(samples, question.precision, question.checkpointing)
            held = memory_model.held_by(name, dataclasses.replace(case, activations=played))
            return memory_model.total(held).high if held else 0.0

        return high

    def _play(
        self, samples: int, precision: Precision | None, checkpointing: bool
    ) -> Activations | None:
        from .activations import from_formula, from_rehearsal
        from .fake_step import CannotRehearseError, rehearse

        try:
            played = rehearse(self.model, self.batch, samples, precision, checkpointing)
        except CannotRehearseError as error:
            self.why_not = f"the model does not run on fake tensors ({error})"
            gradients = self.counted.gradients
            return from_formula(
                self.model, self.batch, samples, gradients, precision, checkpointing
            )
        return from_rehearsal(played)

    def _rows(
        self, question: Question, case: memory_model.Case, room: available_memory.Room
    ) -> list[Estimate]:
        rows = []
        for name in strategy_names():
            rows.append(self._row(name, name, question, case, room))
            for beside in ROWS_BESIDE.get(name, ()) if case.on_gpu else ():
                rows.append(self._row(beside, name, question, case, room))
        return rows

    def _row(
        self,
        name: str,
        strategy: str,
        question: Question,
        case: memory_model.Case,
        room: available_memory.Room,
    ) -> Estimate:
        profile = profile_of(strategy)
        held = memory_model.held_by(name, case)
        line, why = line_of(name, strategy, question, case.ranks)
        if self._refused.get(strategy):
            line, why = "", self._refused[strategy]
        whole = case.activations is not None
        parts = () if held is None else tuple(
            Part(kind, round(span.low), round(span.high)) for kind, span in held.items()
        )  # fmt: skip
        span = None if held is None else memory_model.total(held)
        fits = "unknown" if span is None else recommendation.judge(span, room.free, whole)
        costs = profile.costs
        if name.endswith("--cpu-offload"):
            costs = "shards cross to the host and back, and the CPU takes the optimizer's step"
        if "offload" in name:
            counted = self.counted
            need = counted.parameters + counted.gradients + counted.all_states
            costs += f"; {format_bytes(need)} of the host's memory"
            if room.host is not None and need > room.host and not why:
                fits, why = (
                    "no",
                    f"needs {format_bytes(need)} of the host, {format_bytes(room.host)} is free",
                )
        return Estimate(
            name=name,
            summary=profile.summary,
            parts=parts,
            low=0 if span is None else round(span.low),
            high=0 if span is None else round(span.high),
            fits=fits if line else "no",
            why=why,
            speed=speed_model.speed_of(name, case),
            costs=costs,
            source=memory_model.source_of(name) if held else "",
            line=line,
        )

    def _described(self) -> str:
        counted = self.counted
        name = type(self.model).__name__
        text = f"{name}, {_many(counted.elements)} parameters"
        if counted.trained != counted.elements:
            text += f", of which {_many(counted.trained)} train"
        return f"{text}, {counted.optimizer}"

    def _notes(self, case: memory_model.Case, room: available_memory.Room) -> list[str]:
        notes = list(room.notes)
        if self.optimizer is None:
            notes.append("No optimizer was given: Adam is assumed, 8 bytes a parameter.")
        elif self.counted.guessed:
            notes.append(
                f"{self.counted.optimizer} could not be tried; states like Adam's are assumed."
            )
        acts = case.activations
        if acts is not None:
            per = f"{format_count(acts.samples, 'sample')} on each rank"
            because = f"; {self.why_not}" if self.why_not else ""
            notes.append(f"Activations: {per}, from {acts.source}{because}.")
        elif self.why_not:
            notes.append(f"Activations are not counted: {self.why_not}.")
        if not room.on_gpu and room.ranks > 1:
            notes.append(
                "CPU ranks share the cores: they try things out, and are no faster than one."
            )
        elif room.ranks > 1:
            notes.append("Over a slow link (no NVLink, several machines) ddp is the fastest.")
        return notes


def _row_of(choice: recommendation.Choice, rows: list[Estimate]) -> Estimate:
    """Return the row to take, as it is taken."""
    row = next(row for row in rows if row.name == choice.name)
    if not choice.checkpointing:
        return row
    return dataclasses.replace(row, costs=f"{row.costs}; activations are computed twice")


def check(model: Any, optimizer: Any) -> None:
    """Refuse what is no model, and what is no optimizer.

    Raises:
        OptionError: one of them is not.
    """
    import torch
    from torch.nn.parameter import is_lazy

    if not isinstance(model, torch.nn.Module):
        what = f"The model is a {type(model).__name__}, and no torch.nn.Module"
        raise OptionError(format_message(what, instead="nbmgpu.advise(model, optimizer, batch)"))
    if any(map(is_lazy, model.parameters())):
        what = "The model has lazy modules, whose shapes are known after a forward pass"
        raise OptionError(format_message(what, instead="model(x), and then nbmgpu.advise(model)"))
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        what = f"The optimizer is a {type(optimizer).__name__}, and no torch.optim.Optimizer"
        raise OptionError(format_message(what, instead="nbmgpu.advise(model, optimizer=optimizer)"))


def _batch_of(batch: Any, loader: Any) -> tuple[Any, int, str]:
    """Return a batch to rehearse with, its samples, and why there is none."""
    from torch.utils.data import DataLoader

    from .fake_step import rows_of
    from .sample_batch import NoBatchError, from_loader, shaped

    if isinstance(batch, DataLoader):
        batch, loader = None, batch
    if batch is not None:
        if isinstance(batch, tuple) and batch and all(type(size) is int for size in batch):
            batch = shaped(batch)
        return batch, rows_of(batch), ""
    if loader is None:
        return None, 0, "there is no batch to go by; give batch= or loader="
    try:
        found, size = from_loader(loader)
    except NoBatchError as error:
        return None, 0, str(error)
    return found, size, ""


def _refused_by_optimizer(optimizer: Optimizer | None) -> Mapping[str, str]:
    """Return the strategies that cannot train with ``optimizer``, and why."""
    if optimizer is None or any(p.is_meta for g in optimizer.param_groups for p in g["params"]):
        return {}  # it is found out by a trial on the parameters' device
    from nbmgpu.strategies.per_parameter import cross_parameter_dependence

    tests: dict[str, Callable[[Optimizer], str]] = {"zero1": cross_parameter_dependence}
    name = type(optimizer).__name__
    found = {strategy: test(optimizer) for strategy, test in tests.items()}
    return {strategy: f"not with {name}: {why}" for strategy, why in found.items() if why}


def _many(number: int) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {word}"
    return f"{number:,}"
