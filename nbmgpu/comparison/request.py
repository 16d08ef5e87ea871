"""Parses ``%%mgpu compare`` and ``%%mgpu scale``, or keywords, into the runs to make.

The first run is on one device.  A run whose strategy does not support an option is listed with
the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nbmgpu.devices.probe import Machine, probe
from nbmgpu.errors import OptionError
from nbmgpu.options.engine_profiles import with_profile, with_profile_name
from nbmgpu.options.flag_table import Flag, FlagTable
from nbmgpu.options.flags import FLAGS, RUN
from nbmgpu.options.parsing import (
    format_flags,
    format_problems,
    parse_line,
    reject_unknown,
    validate,
)
from nbmgpu.options.run_options import DEFAULTS, RunOptions
from nbmgpu.options.values import InvalidValueError, Problem, known_strategies, list_of
from nbmgpu.runs.engine_plugins import DEFAULT_ENGINE
from nbmgpu.strategies import canonical, nearest, profile_of
from nbmgpu.strategies.mesh_sizes import parse_mesh
from nbmgpu.strategies.option_support import COMMON_OPTIONS, DDP_OPTIONS
from nbmgpu.strategies.strategy_options import FIELDS

from .counts import (
    contradictions,
    default_rank_counts,
    rank_count_completions,
    validate_node_counts,
    validate_rank_counts,
)

STEPS = 20
"""The default number of optimizer steps per run."""

DEFAULT_STRATEGIES = ("ddp", "zero2", "fsdp")
"""The strategies that are compared by default."""

ONE_DEVICE = "ddp"
"""On one rank this is plain training, and supports the options that all strategies share."""

SHARED_OPTIONS = COMMON_OPTIONS | {"sync_batchnorm"}
"""Options that change what is computed: a strategy without one of them cannot be compared."""

UNSUPPORTED = {
    "--pull": "A comparison writes nothing back: the notebook's objects stay as they are",
    "--no-pull": "A comparison writes nothing back anyway",
    "--background": "Its runs follow one another, and the notebook must not change meanwhile",
    "--detach": "Its runs follow one another, and the notebook starts each",
    "--dry-run": "Use it for a single run: %%mgpu --dry-run",
    "--export": "Use it for a single run: %%mgpu --export train.py",
    "--keep-start": "Its runs are short, and all start from the same",
    "--checkpoint-every": "Its runs are short",
    "--keep": "Its runs write no checkpoints",
    "--resume": "All of its runs start from the notebook's objects as they are",
    "--profile": "It slows the steps that a comparison measures: profile a single run",
    "--verify": "It takes time from the steps that are measured, and losses are compared anyway",
    "--max-restarts": "A run that fails is a row of its table",
}
"""Flags of ``%%mgpu`` that do not apply to several runs, and why."""

TRIAL_ONLY = ("steps", "pull", "timeout", "verify")
"""Options of a comparison's runs that a suggested line leaves out."""


def _validate_strategies(value: object) -> tuple[str, ...]:
    words = [*map(str, list_of(value))]
    names = tuple(dict.fromkeys(canonical(word) or nearest(word) for word in words))
    if unknown := [word for word in words if canonical(word) is None]:
        what = f"There is no strategy {', '.join(map(repr, unknown))}"
        raise InvalidValueError(
            Problem(what, f"Strategies: {', '.join(known_strategies())}"), names
        )
    if len(names) < len(words):
        raise InvalidValueError(Problem("A strategy is named twice"), names)
    return names


def _validate_steps(value: object) -> int:
    """Validate the number of steps; the first is never timed."""
    steps = RUN.validators["steps"](value)
    if isinstance(steps, int) and steps >= 2:
        return steps
    problem = Problem(
        "A comparison needs at least 2 steps",
        "The first steps of a run are warm-up, the others are timed",
    )
    raise InvalidValueError(problem, STEPS)


def _table(command: str, without: str, own: Sequence[Flag]) -> FlagTable:
    """Return a command's own flags, and those of ``%%mgpu`` that apply to it."""
    steps = replace(
        next(flag for flag in FLAGS if flag.field == "steps"),
        help=f"end each run after this many optimizer steps (default: {STEPS})",
        validate=_validate_steps,
    )
    left_out = {without, "steps"} | {flag.field for flag in own}
    left_out |= {flag.field for flag in FLAGS if flag.name in UNSUPPORTED}
    others = [flag for flag in FLAGS if flag.field not in left_out]
    return FlagTable(command, (*own, steps, *others), UNSUPPORTED)


COMPARE = _table(
    "%%mgpu compare",
    "strategy",
    [
        Flag(
            "--strategies",
            "strategies",
            f"what to compare (default: {','.join(DEFAULT_STRATEGIES)})",
            short="-s",
            metavar="NAMES",
            validate=_validate_strategies,
            completions=known_strategies,
            several=True,
        )
    ],
)
"""The flags of ``%%mgpu compare``."""

SCALE = _table(
    "%%mgpu scale",
    "gpus",
    [
        Flag(
            "--gpus",
            "gpus",
            "numbers of ranks to compare (default: 1, 2, 4, ... to all)",
            short="-g",
            metavar="1,2,4",
            validate=validate_rank_counts,
            completions=rank_count_completions,
            several=True,
        ),
        Flag(
            "--nodes",
            "nodes",
            "numbers of machines to compare; --gpus is then the number on each (slurm, ray)",
            metavar="1,2",
            validate=validate_node_counts,
            completions=lambda: ("1", "2"),
            several=True,
        ),
    ],
)
"""The flags of ``%%mgpu scale``."""

TABLES = {"compare": COMPARE, "scale": SCALE}
"""The flags of each kind of comparison."""

COUNTS = ("gpus", "nodes")
"""What ``%%mgpu scale`` takes several numbers of."""

OWN_DEFAULTS: dict[str, Any] = DEFAULTS | {"strategies": DEFAULT_STRATEGIES, "steps": STEPS}


@dataclass(frozen=True)
class Entry:
    """One run to make.

    Attributes:
        strategy: its name.
        ranks: their number; None for all devices.
        nodes: number of machines that they are on; None for the engine's default.
        options: None if the run is not possible; ``problem`` says why.
        is_baseline: whether this is the run on one device.
    """

    strategy: str
    ranks: int | None
    nodes: int | None
    options: RunOptions | None
    problem: str = ""
    is_baseline: bool = False

    @property
    def line(self) -> str:
        """The ``%%mgpu`` line that trains a whole cell in this way; empty if there is none."""
        if self.options is None or self.is_baseline:
            return ""
        plain: dict[str, Any] = {name: DEFAULTS[name] for name in TRIAL_ONLY}
        return replace(self.options, **plain).command


@dataclass(frozen=True)
class Request:
    """Runs to compare: ``kind`` is compare or scale, ``command`` is the line that asks for them."""

    kind: str
    command: str
    steps: int
    entries: tuple[Entry, ...]

    @property
    def has_nodes(self) -> bool:
        """Whether numbers of nodes are given."""
        return any(entry.nodes is not None for entry in self.entries)

    @property
    def engine(self) -> str:
        """The engine of all runs."""
        given = (entry.options.engine for entry in self.entries if entry.options is not None)
        return next(given, DEFAULT_ENGINE)


def parse(kind: str, line: str) -> Request:
    """Parse the line of a comparison of ``kind``, without its first words.

    Raises:
        OptionError: the message lists every problem and ends with a line that works.
    """
    table = TABLES[kind]
    given, problems = parse_line(line, table, OWN_DEFAULTS)
    values, more = validate(_with_profile(given, table), table)
    if "engine" in more:  # a profile may be suggested
        values, _ = validate(_with_profile(values, table), table)
    values = _complete(values, table)
    more |= contradictions(values)
    request = _request(kind, values, probe())
    if problems or more:
        raise OptionError(format_problems([*problems, *more.values()], request.command))
    return request


def from_keywords(kind: str, **keywords: Any) -> Request:
    """Return the request of keyword arguments.

    Raises:
        OptionError: a keyword is unknown or invalid.
    """
    table = TABLES[kind]
    reject_unknown(keywords, table)
    values, problems = validate(_with_profile(keywords, table), table)
    values = _complete(values, table)
    problems |= contradictions(values)
    if problems:
        suggestion = ", ".join(f"{name}={values[name]!r}" for name in problems)
        raise OptionError(format_problems(problems.values(), suggestion))
    return _request(kind, values, probe())


def _with_profile(given: Mapping[str, object], table: FlagTable) -> dict[str, object]:
    """Replace the name of a profile by those of its options that a comparison has."""
    options = with_profile(given)
    return {name: value for name, value in options.items() if name in table.validators}


def _complete(given: Mapping[str, Any], table: FlagTable) -> dict[str, Any]:
    """Return the values of all flags of ``table``."""
    return {flag.field: OWN_DEFAULTS[flag.field] for flag in table.flags} | dict(given)


def _request(kind: str, values: dict[str, Any], machine: Machine) -> Request:
    table = TABLES[kind]
    several = COUNTS if kind == "scale" else ()
    typed = with_profile_name(values, OWN_DEFAULTS, table.validators)
    alone = {name: typed[name][0] for name in several if len(typed[name] or ()) == 1}
    command = " ".join([table.command, *format_flags(typed | alone, table.flags, OWN_DEFAULTS)])
    steps: int = values["steps"]
    entries = _strategy_entries(values) if kind == "compare" else _size_entries(values, machine)
    return Request(kind, command, steps, tuple(entries))


def _strategy_entries(values: dict[str, Any]) -> Iterable[Entry]:
    names = values.pop("strategies")
    yield _baseline(values)
    for name in names:
        yield _entry(name, values)


def _size_entries(values: dict[str, Any], machine: Machine) -> Iterable[Entry]:
    """Return a run for each number of nodes, or of ranks; one rank in all is the baseline."""
    counts, nodes = values.pop("gpus"), values.pop("nodes")
    strategy = values.pop("strategy")
    yield _baseline(values)
    if counts is None and nodes is None:
        counts = default_rank_counts(machine, values["cpu"])
    for on_nodes in nodes or (None,):
        for count in counts or (None,):
            if count != 1 or (on_nodes or 1) > 1:
                yield _entry(strategy, values | {"gpus": count, "nodes": on_nodes})


def _baseline(values: Mapping[str, Any]) -> Entry:
    """Return the run on one device, with all options that apply to one device."""
    gpus = values.get("gpus")  # indices or a count; absent where numbers of ranks are compared
    first = gpus[:1] if isinstance(gpus, tuple) else 1
    collective = {name: DEFAULTS[name] for name in (*DDP_OPTIONS, "sync_batchnorm")}
    alone = {**values, **collective, "gpus": first, "nodes": None}
    return replace(_entry(ONE_DEVICE, alone), is_baseline=True)


def _entry(strategy: str, values: Mapping[str, Any]) -> Entry:
    """Return the run of a strategy, without options that only other strategies have."""
    profile = profile_of(strategy)
    inapplicable = [
        n for n in FIELDS if n not in SHARED_OPTIONS and n not in profile.options.supported
    ]
    if not {*parse_mesh(values["mesh"])} <= {*profile.mesh}:
        inapplicable.append("mesh")  # it is one of the other strategies
    chosen = {**values, **{name: DEFAULTS[name] for name in inapplicable}}
    gpus = chosen["gpus"]
    on_node = gpus if isinstance(gpus, int) else len(gpus) if isinstance(gpus, tuple) else None
    nodes: int | None = chosen["nodes"]
    ranks = on_node and on_node * (nodes or 1)
    try:
        options = RunOptions(strategy=strategy, pull=(), verify=0, **chosen)
    except OptionError as error:
        return Entry(strategy, ranks, nodes, None, str(error).partition("\n")[0])
    return Entry(strategy, ranks, nodes, options)
