"""The state of the strategy picker as data: settings go in, what to display comes out.

The notebook widget and the JupyterLab dialog display the same ``PickerState``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from nbmgpu.cell import read_cell
from nbmgpu.devices.placement import RANKS_PER_CORE
from nbmgpu.devices.probe import Machine, probe
from nbmgpu.errors import NbmgpuError
from nbmgpu.options.run_options import RunOptions
from nbmgpu.runs.engine_plugins import DEFAULT_ENGINE

from .advice import Advice
from .advisor import catalogue
from .model_advisor import ModelAdvisor
from .request import AdviceRequest
from .training_objects import TrainingObjects
from .training_setup import KINDS, Kind

if TYPE_CHECKING:
    from nbmgpu.cell.source import Transform

COUNTS = (1, 2, 4, 8)
"""Numbers of devices that are offered, where the machine is not known."""

MAX_CPU_RANKS = 8
"""Maximum number of CPU ranks that is offered: they share the cores."""


@dataclass(frozen=True)
class Controls:
    """Settings besides the strategy, named as in ``RunOptions``; ``""`` is the cell's default.

    Attributes:
        link: Gbit/s that a node sends to others; 0 if unknown.
        memory: free memory of each GPU of the nodes, as text; ``""`` if unknown.
    """

    gpus: int
    precision: Literal["", "bf16", "fp16", "fp32"] = ""
    accumulate: int = 1
    batch: Literal["global", "per-rank"] = "global"
    checkpointing: bool = False
    nodes: int = 1
    link: float = 0.0
    memory: str = ""


@dataclass(frozen=True)
class PickerState:
    """Everything that a picker displays.

    Attributes:
        subject: the names of the model, optimizer and loader, or why there is no model.
        devices: label of the devices: ``GPUs`` or ``CPU ranks``.
        elsewhere: whether ranks are on nodes of a cluster, each with that many devices.
        counts: the device counts to choose from.
        controls: the current settings.
        selected: the strategy on the cell's own line; empty if there is none.
        advice: the estimates and the recommendation; null if there is a problem.
        kinds: labels of the kinds of memory.
        problem: why the settings are invalid, and how to fix them; usually empty.
    """

    subject: str
    devices: str
    counts: tuple[int, ...]
    controls: Controls
    selected: str
    advice: Advice | None
    kinds: Mapping[Kind, str] = field(default_factory=lambda: dict(KINDS))
    problem: str = ""
    elsewhere: bool = False

    def plain(self) -> dict[str, Any]:
        """Return the state as JSON-serializable data."""
        return asdict(self)


class PickerController:
    """The settings of one picker; computes a new state when they change."""

    def __init__(
        self,
        advisor: ModelAdvisor | None,
        subject: str = "",
        options: RunOptions | None = None,
        selected: str = "",
        link: float | None = None,
        memory: str = "",
    ) -> None:
        """Probe the machine and set the controls.

        Args:
            advisor: the advisor for the model; None if there is no model.
            subject: as in ``PickerState``.
            options: options of the cell's own line, which the controls start with.
            selected: as in ``PickerState``.
            link, memory: of nodes, as in ``AdviceRequest``.
        """
        self.advisor = advisor
        self.subject = subject
        self.selected = selected
        self.machine: Machine = probe()
        self.options = options = options or RunOptions()
        self.elsewhere = options.engine != DEFAULT_ENGINE
        self.on_gpu = (self.machine.cuda or self.elsewhere) and not options.cpu
        self.counts = COUNTS if self.elsewhere else _device_counts(self.machine, self.on_gpu)
        self.controls = Controls(
            gpus=_initial_count(options, self.counts, self.on_gpu),
            precision=options.precision or "",
            accumulate=options.accumulate,
            batch=options.batch,
            checkpointing=options.checkpointing,
            nodes=options.nodes or 1,
            link=link or 0.0,
            memory=memory,
        )

    def choose(self, controls: Mapping[str, Any]) -> PickerState:
        """Update the controls and return the new state; unknown keys are ignored."""
        known = {name: controls[name] for name in asdict(self.controls) if name in controls}
        self.controls = Controls(**asdict(self.controls) | known)
        return self.state()

    def request(self) -> AdviceRequest:
        """Return the controls as a request.

        GPU indices of the cell's line are kept if their number has not changed.
        """
        controls, options = self.controls, self.options
        indices = options.gpus if isinstance(options.gpus, tuple) else ()
        return AdviceRequest(
            gpus=indices if len(indices) == controls.gpus else controls.gpus,
            precision=controls.precision or None,
            accumulate=controls.accumulate,
            checkpointing=controls.checkpointing,
            batch=controls.batch,
            cpu=options.cpu,
            engine=options.engine,
            nodes=controls.nodes if self.elsewhere else options.nodes,
            memory=(controls.memory or None) if self.elsewhere else None,
            link=(controls.link or None) if self.elsewhere else None,
            base=options,
        )

    def state(self) -> PickerState:
        """Return what to display for the current controls."""
        advice, problem = None, ""
        try:
            advise = self.advisor.advise if self.advisor else catalogue
            advice = advise(self.request(), self.machine)
        except NbmgpuError as error:
            problem = str(error)
        devices = "GPUs" if self.on_gpu else "CPU ranks"
        return PickerState(
            self.subject, devices, self.counts, self.controls, self.selected, advice,
            problem=problem, elsewhere=self.elsewhere,
        )  # fmt: skip


def _device_counts(machine: Machine, on_gpu: bool) -> tuple[int, ...]:
    if on_gpu:
        return tuple(range(1, len(machine.gpus) + 1))
    most = min(MAX_CPU_RANKS, RANKS_PER_CORE * machine.cores)
    return tuple(count for count in COUNTS if count <= most)


def _initial_count(options: RunOptions, counts: tuple[int, ...], on_gpu: bool) -> int:
    match options.gpus:
        case int(count):
            return count
        case tuple(indices):
            return len(indices)
        case _:
            return counts[-1] if on_gpu else min(2, counts[-1])


def describe(
    source: str,
    namespace: Mapping[str, Any],
    controls: Mapping[str, Any] | None = None,
    transform: Transform | None = None,
) -> PickerState:
    """Return the picker's state for a cell, with the model that its source reads.

    The cell is not run, and torch is not imported if the notebook has not imported it.

    Args:
        source: the cell, with or without a ``%%mgpu`` line.
        namespace: the notebook's names.
        controls: settings that differ from the cell's line.
        transform: turns the cell with magic lines into plain Python.
    """
    options, selected, body = _split_magic_line(source)
    try:
        reads = read_cell(body, namespace, transform).reads
        found = TrainingObjects.among(reads, namespace)
        subject = found.description
        advisor = found.advisor() if found.model else None
    except (NbmgpuError, SyntaxError) as error:
        subject, advisor = str(error).partition("\n")[0], None
    return PickerController(advisor, subject, options, selected).choose(controls or {})


def _split_magic_line(source: str) -> tuple[RunOptions | None, str, str]:
    """Return the options of a cell's ``%%mgpu`` line, its strategy, and the rest of the cell."""
    first, _, rest = source.partition("\n")
    if first.split()[:1] != ["%%mgpu"]:
        return None, "", source
    try:
        options = RunOptions.parse(first.removeprefix("%%mgpu"))
    except NbmgpuError:
        return None, "", rest
    return options, options.strategy, rest
