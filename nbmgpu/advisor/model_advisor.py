"""Advises on one model: measures it once, and answers any number of requests."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from nbmgpu.devices.probe import Machine
from nbmgpu.errors import OptionError, StrategyError, format_message
from nbmgpu.formatting import format_bytes, format_count
from nbmgpu.options.run_options import RunOptions
from nbmgpu.strategies.mesh_sizes import data_parallel_sizes
from nbmgpu.strategies.strategy_options import StrategyOptions

from . import available_memory, memory_model, recommendation
from .advice import Advice, Estimate
from .arguments import check_types, resolve_batch, unsupported_strategies
from .available_memory import AvailableMemory
from .estimates import estimate_rows
from .largest_batch import largest_batch
from .node_traffic import is_slow, link_note, traffic_sentence
from .recommendation import Recommendation
from .request import AdviceRequest
from .row_kinds import RowKind, row_kinds
from .step_measurements import StepMeasurements
from .training_setup import TrainingSetup

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from .fsdp_units import UnitSizes
    from .model_parts import ModelParts


SLOW_LINKS = (
    "Over a slow link (no NVLink, several machines) ddp is the fastest if the model fits. Between "
    "groups of GPUs with such a link, hsdp sends only gradients of shards over it, and pp only "
    "activations of one layer, also with fsdp or tp inside of a group (fsdp+pp, tp+pp); tp, "
    "fsdp+tp, sp and cp need fast links along tp, sp and cp."
)


WHOLE_MODEL = (
    "A model is sharded, or split, when it is on its device: until then each rank holds all {} of "
    "its parameters, which are more than the free memory."
)


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
        self.batch, self.samples, self.no_batch = resolve_batch(batch, loader)
        self._steps = StepMeasurements(model, self.batch, self.model_size.gradients)
        self._units: dict[Any, UnitSizes] = {}
        self._divisions: dict[Any, ModelParts] = {}
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
        setups = self._setups(request, available)
        rows = self._rows(request, setups, available)
        checkpointed_rows: list[Estimate] = []
        checkpointed_setups: dict[RowKind, TrainingSetup] = {}
        checkpointed = dataclasses.replace(request, checkpointing=True)
        if not request.checkpointing and not recommendation.names_on_device(rows, "fits"):
            checkpointed_setups = self._setups(checkpointed, available)
            checkpointed_rows = self._rows(checkpointed, checkpointed_setups, available)
        setup = next(each for kind, each in setups.items() if kind.name == "ddp")
        slow = available.nodes > 1 and is_slow(request.link, available.ranks_per_node)
        choice = self._recommend(rows, checkpointed_rows, setup, available, slow)
        chosen_setups = checkpointed_setups if choice.checkpointing else setups
        line, largest = "", None
        if choice.name:
            chosen = _chosen_row(choice, checkpointed_rows if choice.checkpointing else rows)
            rows = [chosen if row.name == chosen.name else row for row in rows]
            kind, setup = next(
                each for each in chosen_setups.items() if each[0].name == choice.name
            )
            chosen_request = checkpointed if choice.checkpointing else request
            peak_memory = self._peak_memory_function(kind, chosen_request, setup)
            line = chosen.line
            choice = dataclasses.replace(
                choice, reason=choice.reason + traffic_sentence(chosen.traffic, request.link)
            )
            largest = largest_batch(chosen, setup, available.free, peak_memory)
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
            notes=tuple(self._notes(setup, available, request.link)),
        )

    def _rows(
        self,
        request: AdviceRequest,
        setups: Mapping[RowKind, TrainingSetup],
        available: AvailableMemory,
    ) -> list[Estimate]:
        unsupported = dict(self._unsupported)
        for kind, setup in setups.items():
            if setup.mesh.get("pp", 1) > 1 and setup.held == 1.0:
                unsupported[kind.name] = "the model has no sequence of layers, one for each rank"
        return estimate_rows(request, setups, available, unsupported)

    def _recommend(
        self,
        rows: list[Estimate],
        checkpointed_rows: list[Estimate],
        setup: TrainingSetup,
        available: AvailableMemory,
        slow_link: bool,
    ) -> Recommendation:
        if not self.model_size.trainable:
            return recommendation.NOTHING_TO_TRAIN
        batch_known = self.batch is not None
        return recommendation.recommend(
            rows, setup, available.free, checkpointed_rows, batch_known, slow_link
        )

    def _available_memory(self, request: AdviceRequest, machine: Machine | None) -> AvailableMemory:
        if request.link is not None and not request.is_elsewhere:
            what = "link= says how fast nodes are connected"
            instead = "engine='slurm', nodes=2, link=25"
            raise OptionError(format_message(what, "It goes with several machines", instead))
        if request.is_elsewhere:
            options = request.run_options()
            return available_memory.memory_of_nodes(options, request.memory, machine)
        if request.memory is None:
            return available_memory.probe_memory(request.run_options(), machine)
        if not isinstance(request.gpus, int) or request.gpus < 1:
            what = "memory= describes another machine"
            raise OptionError(format_message(what, "It goes with a number of GPUs", "gpus=8"))
        request.run_options()  # validates the options
        return available_memory.assume_memory(request.gpus, request.memory)

    def _setups(
        self, request: AdviceRequest, available: AvailableMemory
    ) -> dict[RowKind, TrainingSetup]:
        """Return the setup of each row; activations of all rows are measured together."""
        options = request.base or RunOptions()
        on = available.ranks, available.on_gpu
        kinds = list(row_kinds(*on, options, self.samples, available.nodes))
        meshes = {kind: kind.mesh(available.ranks, available.on_gpu, options) for kind in kinds}
        parts = {kind: self._parts(kind, meshes[kind], options) for kind in kinds}
        samples = {kind: self._samples(request, meshes[kind]) for kind in kinds}
        step = request.precision, request.checkpointing
        for number in set(samples.values()):
            wanted = [parts[kind] for kind in kinds if samples[kind] == number]
            self._steps.measure(number, *step, wanted)
        return {
            kind: TrainingSetup(
                model_size=self.model_size,
                units=self._unit_sizes(options.fsdp_units, parts[kind]),
                activations=self._steps.activations(samples[kind], *step, parts[kind]),
                ranks=available.ranks,
                on_gpu=available.on_gpu,
                accumulate=request.accumulate,
                precision=request.precision,
                mesh=meshes[kind],
                held=parts[kind].held_fraction(self.model),
                kept=parts[kind].kept_fraction(self.model),
                largest_block=parts[kind].largest_region(),
            )
            for kind in kinds
        }

    def _parts(
        self, kind: RowKind, mesh: Mapping[str, int], options: StrategyOptions
    ) -> ModelParts:
        """Return what a rank has of the model, the same object for the same division."""
        from .model_parts import parts_of

        chosen = kind.options_of_parts(options)
        key = kind.strategy, tuple(mesh.items()), chosen
        if key not in self._divisions:
            try:
                self._divisions[key] = parts_of(kind.strategy, self.model, mesh, chosen)
            except StrategyError as error:  # no such split points
                raise OptionError(str(error)) from None
        return self._divisions[key]

    def _samples(self, request: AdviceRequest, mesh: Mapping[str, int]) -> int:
        """Return the number of samples on a rank."""
        shards = math.prod(data_parallel_sizes(mesh).values())
        return self.samples if request.batch == "per-rank" else -(-self.samples // shards)

    def _unit_sizes(self, class_names: tuple[str, ...], parts: ModelParts) -> UnitSizes:
        """Return the sizes of the units that FSDP2 gathers, with the given unit classes."""
        from .fsdp_units import measure_units

        key = class_names, parts
        if key not in self._units:
            try:
                self._units[key] = measure_units(self.model, class_names, parts.held)
            except StrategyError as error:  # the model has no such class
                raise OptionError(str(error)) from None
        return self._units[key]

    def _peak_memory_function(
        self, kind: RowKind, request: AdviceRequest, setup: TrainingSetup
    ) -> Callable[[int], float] | None:
        """Return a function from samples per rank to peak bytes; None if it would be slow."""
        if setup.activations is None or setup.activations.extrapolated:
            return None
        parts = self._parts(kind, setup.mesh, request.base or RunOptions())
        step = request.precision, request.checkpointing

        def peak_memory(samples: int) -> float:
            resized = dataclasses.replace(
                setup, activations=self._steps.activations(samples, *step, parts)
            )
            memory = memory_model.estimate_memory(kind.name, resized)
            return memory_model.total(memory).high if memory else 0.0

        return peak_memory

    def _description(self) -> str:
        size = self.model_size
        text = f"{type(self.model).__name__}, {_format_number(size.elements)} parameters"
        if size.trainable != size.elements:
            text += f" ({_format_number(size.trainable)} trainable)"
        return f"{text}, {size.optimizer}"

    def _notes(
        self, setup: TrainingSetup, available: AvailableMemory, link: float | None
    ) -> list[str]:
        size, notes = self.model_size, list(available.notes)
        if self.optimizer is None:
            notes.append("No optimizer was given: Adam is assumed, 8 bytes per parameter.")
        elif size.states_assumed:
            notes.append(
                f"The states of {size.optimizer} could not be measured; the size of "
                "Adam's is assumed."
            )
        acts = setup.activations
        if acts is not None:
            samples = f"{format_count(acts.samples, 'sample')} on each rank"
            failure = f"; {self._steps.failure}" if self._steps.failure else ""
            notes.append(f"Activations: {samples}, from {acts.source}{failure}.")
        elif failure := self._steps.failure or self.no_batch:
            notes.append(f"Activations are not counted: {failure}.")
        if not available.on_gpu and available.ranks > 1:
            notes.append("CPU ranks share the cores: several are not faster than one.")
        elif available.ranks > 1 and available.nodes == 1:
            notes.append(SLOW_LINKS)
        if available.nodes > 1:
            notes.append(link_note(link, available.ranks_per_node))
        if available.free and available.ranks > 1 and size.parameters > available.free:
            notes.append(WHOLE_MODEL.format(format_bytes(size.parameters)))
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
