"""The strategy picker as data: what was chosen goes in, what to show comes out.

The widget of a notebook and the dialog of JupyterLab show the same ``PickerState``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from nbmgpu.cell import read_cell
from nbmgpu.devices.placement import RANKS_PER_CORE
from nbmgpu.devices.probe import Machine, probe
from nbmgpu.errors import NbmgpuError, OptionError, closest_match, format_message
from nbmgpu.options.run_options import RunOptions

from .advice import Advice
from .advisor import Consultation, Question, catalogue
from .memory_model import KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nbmgpu.cell.source import Transform

MOST_CPU_RANKS = 8
"""CPU ranks that are offered at most: they share the cores."""


@dataclass(frozen=True)
class Controls:
    """What can be set beside the strategy, named as in ``RunOptions``; ``""``: as the cell says."""

    gpus: int
    precision: Literal["", "bf16", "fp16", "fp32"] = ""
    accumulate: int = 1
    batch: Literal["global", "per-rank"] = "global"
    checkpointing: bool = False


@dataclass(frozen=True)
class PickerState:
    """All that a picker shows.

    Attributes:
        subject: the names of what was looked at, or the reason why nothing was.
        devices: what ranks are called here: ``GPUs`` or ``CPU ranks``.
        counts: the numbers of them that are offered.
        controls: what is set.
        selected: the strategy that the cell's own line names; empty if there is none.
        advice: the rows and the recommendation; null if there is a problem.
        kinds: the kinds of memory, in words.
        problem: what cannot be had of what was set, and the way out; mostly empty.
    """

    subject: str
    devices: str
    counts: tuple[int, ...]
    controls: Controls
    selected: str
    advice: Advice | None
    kinds: Mapping[Kind, str] = field(default_factory=lambda: dict(KINDS))
    problem: str = ""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


class Picking:
    """What one picker knows: a model or none, and the machine as it was."""

    def __init__(
        self,
        consultation: Consultation | None,
        subject: str = "",
        options: RunOptions | None = None,
        selected: str = "",
    ) -> None:
        """Ask ``consultation``; begin with ``options``, of a line that is there."""
        self.consultation = consultation
        self.subject = subject
        self.selected = selected
        self.machine: Machine = probe()
        self.begun = begun = options or RunOptions()
        self.on_gpu = self.machine.cuda and not begun.cpu
        self.counts = _counts(self.machine, self.on_gpu)
        self.controls = Controls(
            gpus=_ranks(begun, self.counts, self.on_gpu),
            precision=begun.precision or "",
            accumulate=begun.accumulate,
            batch=begun.batch,
            checkpointing=begun.checkpointing,
        )

    def choose(self, controls: Mapping[str, Any]) -> PickerState:
        """Take what was set, and return what to show."""
        known = {name: controls[name] for name in asdict(self.controls) if name in controls}
        self.controls = Controls(**asdict(self.controls) | known)
        return self.state()

    def question(self) -> Question:
        """Return what is set as the advisor takes it; which GPUs, if that many were listed."""
        set_, begun = self.controls, self.begun
        listed = begun.gpus if isinstance(begun.gpus, tuple) else ()
        return Question(
            gpus=listed if len(listed) == set_.gpus else set_.gpus,
            precision=set_.precision or None,
            accumulate=set_.accumulate,
            checkpointing=set_.checkpointing,
            batch=set_.batch,
            cpu=begun.cpu,
            beside=begun,
        )

    def state(self) -> PickerState:
        """Return what to show."""
        advice, problem = None, ""
        try:
            question = self.question()
            ask = self.consultation.advise if self.consultation else catalogue
            advice = ask(question, self.machine)
        except NbmgpuError as error:
            problem = str(error)
        devices = "GPUs" if self.on_gpu else "CPU ranks"
        return PickerState(
            self.subject, devices, self.counts, self.controls, self.selected, advice,
            problem=problem,
        )  # fmt: skip


def _counts(machine: Machine, on_gpu: bool) -> tuple[int, ...]:
    if on_gpu:
        return tuple(range(1, len(machine.gpus) + 1))
    most = min(MOST_CPU_RANKS, RANKS_PER_CORE * machine.cores)
    return tuple(count for count in (1, 2, 4, 8) if count <= most)


def _ranks(options: RunOptions, counts: tuple[int, ...], on_gpu: bool) -> int:
    match options.gpus:
        case int(count):
            return count
        case tuple(listed):
            return len(listed)
        case _:
            return counts[-1] if on_gpu else min(2, counts[-1])


def describe(
    source: str,
    namespace: Mapping[str, Any],
    controls: Mapping[str, Any] | None = None,
    transform: Transform | None = None,
) -> PickerState:
    """Return what a picker shows for a cell: about the model that its source reads.

    Nothing of the cell is run, and torch is not imported if the notebook has not.
    """
    options, selected, body = _line_and_body(source)
    try:
        reads = read_cell(body, namespace, transform).reads
        found = Found.among(reads, namespace)
        subject = found.words
        consultation = found.consultation() if found.model else None
    except (NbmgpuError, SyntaxError) as error:
        subject, consultation = str(error).partition("\n")[0], None
    picking = Picking(consultation, subject, options, selected)
    return picking.choose(controls or {})


def _line_and_body(source: str) -> tuple[RunOptions | None, str, str]:
    """Return the options of a cell's own ``%%mgpu`` line, its strategy, and the rest."""
    first, _, rest = source.partition("\n")
    if first.split()[:1] != ["%%mgpu"]:
        return None, "", source
    try:
        options = RunOptions.parse(first.removeprefix("%%mgpu"))
    except NbmgpuError:
        return None, "", rest
    return options, options.strategy, rest


@dataclass(frozen=True)
class Found:
    """The names of model, optimizer and loader in a cell; empty where there is none."""

    namespace: Mapping[str, Any]
    model: str = ""
    optimizer: str = ""
    loader: str = ""

    @classmethod
    def among(cls, names: Iterable[str], namespace: Mapping[str, Any]) -> Found:
        """Find them among ``names``, the first of each kind; the model is the optimizer's."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return cls(namespace)
        names = list(names)
        held = _held_by_trainers(names, namespace)
        names += held
        namespace = {**namespace, **held}
        loaders = sys.modules.get("torch.utils.data")

        def first(*kinds: Any) -> str:
            return next((n for n in names if isinstance(namespace[n], kinds)), "")

        optimizer = first(torch.optim.Optimizer)
        models = [n for n in names if isinstance(namespace[n], torch.nn.Module)]
        if optimizer:
            trained = set(_parameters(namespace[optimizer]))
            owners = [n for n in models
                      if trained & {id(p) for p in namespace[n].parameters()}]  # fmt: skip
            models = owners or models
        models.sort(key=lambda n: -sum(1 for _ in namespace[n].parameters()))
        # Of several names for one model, the oldest: ``trained = model`` comes later.
        same = [n for n in models if namespace[n] is namespace[models[0]]]
        own = [n for n in same if n not in held]
        model = (own[-1:] or same[:1] or [""])[0]
        # A trainer's data are for the trainer's own model.
        names = [n for n in names if n not in held
                 or namespace[n.rpartition(".")[0]].model is namespace.get(model)]  # fmt: skip
        loader = first(loaders.DataLoader) if loaders else ""
        return cls(namespace, model, optimizer, loader)

    @property
    def words(self) -> str:
        """What was found, or why nothing was."""
        if self.model:
            return ", ".join(filter(None, (self.model, self.optimizer, self.loader)))
        if "torch" not in sys.modules:
            return "torch is not imported yet: run the cells above, which make the model, first"
        return (
            "the cell reads no model of this notebook; where it makes one itself, "
            "%mgpu advise can be asked about it"
        )

    def consultation(self) -> Consultation:
        """Ask about what was found, of which the model must be one."""
        get = self.namespace.get
        optimizer, loader = get(self.optimizer), get(self.loader)
        return Consultation(self.namespace[self.model], optimizer, loader=loader)


def named(words: list[str], namespace: Mapping[str, Any]) -> Found:
    """Return the model among ``words``, of all names if there are none.

    Args:
        words: names, or parts of what they name: ``trainer.model``.
        namespace: the notebook's names.

    Raises:
        OptionError: a word names nothing, or there is no model.
    """
    own = [name for name in namespace if not name.startswith("_")]
    values = {word: _named(word, namespace, own) for word in words} or namespace
    found = Found.among(words or reversed(own), values)
    if not found.model:
        asked = " and ".join(words)
        what = f"{asked} holds no torch.nn.Module" if asked else "This notebook has no model yet"
        raise OptionError(format_message(what, instead="%mgpu advise model optimizer loader"))
    return found


def _held_by_trainers(names: Iterable[str], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return what HF Trainers among ``names`` train, by the words that one would type for it."""
    trainer: Any = getattr(sys.modules.get("transformers.trainer"), "Trainer", ())
    held: dict[str, Any] = {}
    for name in names:
        if isinstance(value := namespace[name], trainer):
            held[f"{name}.model"] = value.model
            held[f"{name}.optimizer"] = value.optimizer  # None before it trains
            with suppress(Exception):  # without data, or with such as do not fit its model
                held[f"{name}.get_train_dataloader()"] = value.get_train_dataloader()
    return held


def _named(word: str, namespace: Mapping[str, Any], own: list[str]) -> Any:
    name, *path = word.split(".")
    if name not in namespace:
        near = closest_match(name, own)
        instead = f"%mgpu advise {'.'.join([near, *path])}" if near else ""
        raise OptionError(format_message(f"There is no {name!r} in this notebook", instead=instead))
    value = namespace[name]
    for part in path:
        if not hasattr(value, part):
            raise OptionError(format_message(f"{name!r} has no {part!r}", instead=f"%mgpu advise {name}"))
        name, value = f"{name}.{part}", getattr(value, part)
    return value


def _parameters(optimizer: Any) -> Iterator[int]:
    return (id(p) for group in optimizer.param_groups for p in group["params"])
