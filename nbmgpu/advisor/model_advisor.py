"""Advises on one model: measures it once, and answers any number of requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbmgpu.devices.probe import Machine
from nbmgpu.errors import OptionError, StrategyError, format_message
from nbmgpu.formatting import format_count

from . import available_memory, memory_model, recommendation
from .advice import Advice, Estimate
from .arguments import check_types, resolve_batch, unsupported_strategies
from .available_memory import AvailableMemory
from .estimates import estimate_rows
from .memory_model import TrainingSetup
from .recommendation import Recommendation
from .request import AdviceRequest

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from nbmgpu.strategies.strategy_options import Precision

    from .activations import Activations
    from .fsdp_units import UnitSizes


class ModelAdvisor:
    """Recommends a strategy for one model under different training options."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        batch: Any = None,
        loader: DataLoader[Any] | None = None,
    ) -> None:
        """Measure ``model`` and ``optimizer``, and read a batch from ``batch`` or ``loader``.

        Raises:
            OptionError: an argument has the wrong type.
        """
        check_types(model, optimizer)
        from .model_size import measure_model

        self.model = model
        self.optimizer = optimizer
        self.model_size = measure_model(model, optimizer)
        self.batch, self.samples, self.failure = resolve_batch(batch, loader)
        self._units: dict[tuple[str, ...], UnitSizes] = {}
        self._activations: dict[Any, Activations | None] = {}
        self._unsupported = unsupported_strategies(optimizer)

    def advise(self, request: AdviceRequest, machine: Machine | None = None) -> Advice:
        """Return advice for the options in ``request``.

        Args:
            request: the training options.
            machine: the machine to train on; by default this machine is probed.

        Raises:
            OptionError: an option has an invalid value, or there are too few devices.
        """
        available = self._available_memory(request, machine)
        setup = self._setup(request, available)
        rows = estimate_rows(request, setup, available, self._unsupported)
        checkpointed_rows: list[Estimate] = []
        checkpointed = dataclasses.replace(request, checkpointing=True)
        if not request.checkpointing and not recommendation.names_on_device(rows, "fits"):
            checkpointed_setup = self._setup(checkpointed, available)
            checkpointed_rows = estimate_rows(
                checkpointed, checkpointed_setup, available, self._unsupported
            )
        choice = self._recommend(rows, checkpointed_rows, setup, available)
        chosen_request = checkpointed if choice.checkpointing else request
        line, largest = "", None
        if choice.name:
            chosen = _chosen_row(choice, checkpointed_rows if choice.checkpointing else rows)
            rows = [chosen if row.name == chosen.name else row for row in rows]
            line, largest = chosen.line, self._largest_batch(chosen, chosen_request, available)
        return Advice(
            model=self._description(),
            devices=available.description,
            ranks=available.ranks,
            free=available.free,
            rows=tuple(rows),
            recommended=choice.name,
            reason=choice.reason,
            line=line,
            largest_batch=largest,
            notes=tuple(self._notes(self._setup(chosen_request, available), available)),
        )

    def _recommend(
        self,
        rows: list[Estimate],
        checkpointed_rows: list[Estimate],
        setup: TrainingSetup,
        available: AvailableMemory,
    ) -> Recommendation:
        if not self.model_size.trainable:
            return recommendation.NOTHING_TO_TRAIN
        batch_known = self.batch is not None
        return recommendation.recommend(rows, setup, available.free, checkpointed_rows, batch_known)

    def _largest_batch(
        self, chosen: Estimate, request: AdviceRequest, available: AvailableMemory
    ) -> int | None:
        """Return the largest global batch, in samples, that should fit."""
        setup = self._setup(request, available)
        peak_memory = self._peak_memory_function(chosen.name, request, setup)
        return recommendation.largest_batch(chosen, setup, available.free, peak_memory)

    def _available_memory(self, request: AdviceRequest, machine: Machine | None) -> AvailableMemory:
        if request.memory is None:
            return available_memory.probe_memory(request.run_options(), machine)
        if not isinstance(request.gpus, int) or request.gpus < 1:
            what = "memory= describes another machine"
            raise OptionError(format_message(what, "It goes with a number of GPUs", "gpus=8"))
        request.run_options()  # validates the options
        return available_memory.assume_memory(request.gpus, request.memory)

    def _setup(self, request: AdviceRequest, available: AvailableMemory) -> TrainingSetup:
        return TrainingSetup(
            model_size=self.model_size,
            units=self._unit_sizes(request.base.fsdp_units if request.base else ()),
            activations=self._step_activations(request, available.ranks),
            ranks=available.ranks,
            on_gpu=available.on_gpu,
            accumulate=request.accumulate,
            precision=request.precision,
        )

    def _unit_sizes(self, class_names: tuple[str, ...]) -> UnitSizes:
        """Return the sizes of the units that FSDP2 gathers, with the given unit classes."""
        from .fsdp_units import measure_units

        if class_names not in self._units:
            try:
                self._units[class_names] = measure_units(self.model, class_names)
            except StrategyError as error:  # the model has no such class
                raise OptionError(str(error)) from None
        return self._units[class_names]

    def _step_activations(self, request: AdviceRequest, ranks: int) -> Activations | None:
        """Return the activations of one rank's step; None without a batch."""
        if self.batch is None:
            return None
        samples = self.samples if request.batch == "per-rank" else -(-self.samples // ranks)
        return self._activations_for(samples, request.precision, request.checkpointing)

    def _activations_for(
        self, samples: int, precision: Precision | None, checkpointing: bool
    ) -> Activations | None:
        """Return the activations of a step with ``samples`` samples; cached."""
        key = samples, precision, checkpointing
        if key not in self._activations:
            self._activations[key] = self._measure_activations(*key)
        return self._activations[key]

    def _peak_memory_function(
        self, name: str, request: AdviceRequest, setup: TrainingSetup
    ) -> Callable[[int], float] | None:
        """Return a function from samples per rank to peak bytes; None if it would be slow."""
        if setup.activations is None or setup.activations.extrapolated:
            return None

        def peak_memory(samples: int) -> float:
            activations = self._activations_for(samples, request.precision, request.checkpointing)
            resized = dataclasses.replace(setup, activations=activations)
            memory = memory_model.estimate_memory(name, resized)
            return memory_model.total(memory).high if memory else 0.0

        return peak_memory

    def _measure_activations(
        self, samples: int, precision: Precision | None, checkpointing: bool
    ) -> Activations | None:
        """Run a fake step, or use the formula where the model does not run on fake tensors."""
        from .activations import from_fake_step, from_formula
        from .fake_step import FakeStepError, run_fake_step

        try:
            step = run_fake_step(self.model, self.batch, samples, precision, checkpointing)
        except FakeStepError as error:
            self.failure = f"the model does not run on fake tensors ({error})"
            gradients = self.model_size.gradients
            return from_formula(
                self.model, self.batch, samples, gradients, precision, checkpointing
            )
        return from_fake_step(step)

    def _description(self) -> str:
        size = self.model_size
        text = f"{type(self.model).__name__}, {_format_number(size.elements)} parameters"
        if size.trainable != size.elements:
            text += f" ({_format_number(size.trainable)} trainable)"
        return f"{text}, {size.optimizer}"

    def _notes(self, setup: TrainingSetup, available: AvailableMemory) -> list[str]:
        notes = list(available.notes)
        if self.optimizer is None:
            notes.append("No optimizer was given: Adam is assumed, 8 bytes per parameter.")
        elif self.model_size.states_assumed:
            notes.append(
                f"The states of {self.model_size.optimizer} could not be measured; the size of "
                "Adam's is assumed."
            )
        acts = setup.activations
        if acts is not None:
            samples = f"{format_count(acts.samples, 'sample')} on each rank"
            failure = f"; {self.failure}" if self.failure else ""
            notes.append(f"Activations: {samples}, from {acts.source}{failure}.")
        elif self.failure:
            notes.append(f"Activations are not counted: {self.failure}.")
        if not available.on_gpu and available.ranks > 1:
            notes.append("CPU ranks share the cores: several are not faster than one.")
        elif available.ranks > 1:
            notes.append(
                "Over a slow interconnect (no NVLink, several machines) ddp is the fastest."
            )
        return notes


def _chosen_row(choice: Recommendation, rows: list[Estimate]) -> Estimate:
    """Return the recommended row; with checkpointing, that is part of its costs."""
    row = next(row for row in rows if row.name == choice.name)
    if not choice.checkpointing:
        return row
    return dataclasses.replace(row, costs=f"{row.costs}; activations are computed twice")


def _format_number(number: int) -> str:
    for size, unit in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"
