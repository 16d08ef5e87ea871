"""What is to be compared: the lines ``%%mgpu compare`` and ``%%mgpu scale``, or keywords.

Both become a ``Request``: the runs to make, the first of them on one device.  A run that
cannot be, because its strategy refuses an option, is there all the same, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nbmgpu.devices.placement import DEFAULT_CPU_RANKS
from nbmgpu.devices.probe import Machine, probe
from nbmgpu.errors import OptionError
from nbmgpu.options.flags import (
    FLAGS,
    RUN,
    Flag,
    FlagTable,
)
from nbmgpu.options.parsing import (
    format_flags,
    format_problems,
    parse_line,
    reject_unknown,
    validate,
)
from nbmgpu.options.run_options import DEFAULTS, RunOptions
from nbmgpu.options.values import InvalidValueError, Problem, known_strategies, list_of
from nbmgpu.strategies import canonical, nearest, profile_of
from nbmgpu.strategies.profiles import COMMON_OPTIONS, DDP_OPTIONS
from nbmgpu.strategies.strategy_options import FIELDS

STEPS = 20
"""Optimizer steps of every run, if nothing is said."""

USUAL = ("ddp", "zero2", "fsdp")
"""The strategies that are compared, if nothing is said."""

ONE_DEVICE = "ddp"
"""On a rank of its own this is plain training, with every option that others have as well."""

EVERYBODYS = COMMON_OPTIONS | {"sync_batchnorm"}
"""Options that say what is computed: a strategy that cannot have one cannot be compared."""

FOREIGN = {
    "--pull": "A comparison brings nothing back: the notebook's objects stay as they are",
    "--no-pull": "A comparison brings nothing back anyway",
    "--background": "Its runs come one after another, and the notebook must not change meanwhile",
    "--dry-run": "Ask it of a single run: %%mgpu --dry-run",
}
"""Flags of ``%%mgpu`` that make no sense for several runs."""

TRIAL_ONLY = ("steps", "pull", "timeout")
"""Options of a comparison's runs that are not meant for the training to come."""


def _read_strategies(value: object) -> tuple[str, ...]:
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


def _read_counts(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    words = [*map(str, list_of(value))]
    counts = tuple(sorted({int(word) for word in words if re.fullmatch(r"0*[1-9]\d*", word)}))
    if len(counts) < len(words):
        problem = Problem(
            f"{value!r} does not list different numbers of ranks",
            "They are whole numbers from 1, such as 1,2,4",
        )
        raise InvalidValueError(problem, counts if max(counts, default=1) > 1 else (1, 2))
    return counts


def _read_steps(value: object) -> int:
    """Read the steps of a run, of which the first is never timed."""
    steps = RUN.validators["steps"](value)
    if isinstance(steps, int) and steps >= 2:
        return steps
    problem = Problem(
        "A comparison needs more steps than one",
        "The first of a run are its warm-up, the others are timed",
    )
    raise InvalidValueError(problem, STEPS)


def _all_counts(machine: Machine, cpu: bool = False) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to the number of GPUs, else of cores."""
    on_gpu = machine.cuda and not cpu
    most = len(machine.gpus) if on_gpu else max(DEFAULT_CPU_RANKS, machine.cores)
    return tuple(1 << power for power in range(most.bit_length()))


def _offered() -> tuple[str, ...]:
    return tuple(map(str, _all_counts(probe())))


def _table(command: str, without: str, own: Iterable[Flag]) -> FlagTable:
    """Return the flags of a command: its own, and those of ``%%mgpu`` that it has not replaced."""
    steps = replace(
        next(flag for flag in FLAGS if flag.field == "steps"),
        help=f"end each run after this many optimizer steps (default: {STEPS})",
        validate=_read_steps,
    )
    left_out = {without, "steps", "pull", "background", "dry_run"}
    others = [flag for flag in FLAGS if flag.field not in left_out]
    return FlagTable(command, (*own, steps, *others), FOREIGN)


COMPARE = _table(
    "%%mgpu compare",
    "strategy",
    [
        Flag(
            "--strategies", "strategies", f"what to compare (default: {','.join(USUAL)})",
            short="-s", metavar="NAMES", validate=_read_strategies, completions=known_strategies,
            several=True,
        )
    ],
)  # fmt: skip
"""What ``%%mgpu compare`` takes."""

SCALE = _table(
    "%%mgpu scale",
    "gpus",
    [
        Flag(
            "--gpus", "gpus", "numbers of ranks to compare (default: 1, 2, 4, ... to all)",
            short="-g", metavar="1,2,4", validate=_read_counts, completions=_offered, several=True,
        )
    ],
)  # fmt: skip
"""What ``%%mgpu scale`` takes."""

TABLES = {"compare": COMPARE, "scale": SCALE}
"""The flags of each kind of comparison."""

OWN_DEFAULTS: dict[str, Any] = DEFAULTS | {"strategies": USUAL, "steps": STEPS}


@dataclass(frozen=True)
class Entry:
    """One run to make: on ``ranks`` or, with None, as many as there are devices.

    ``options`` are None where the run cannot be, and ``problem`` says why.
    """

    strategy: str
    ranks: int | None
    options: RunOptions | None
    problem: str = ""
    alone: bool = False

    @property
    def line(self) -> str:
        """The line that trains a whole cell in this way; empty if nothing can."""
        if self.options is None or self.alone:
            return ""
        plain: dict[str, Any] = {name: DEFAULTS[name] for name in TRIAL_ONLY}
        return replace(self.options, **plain).command


@dataclass(frozen=True)
class Request:
    """Runs to compare: ``kind`` is compare or scale, ``command`` the line that asks for them."""

    kind: str
    command: str
    steps: int
    entries: tuple[Entry, ...]


def parse(kind: str, line: str) -> Request:
    """Return what the line of a comparison of ``kind`` asks for, without its first words.

    Raises:
        OptionError: it says everything that is wrong, and ends with a line that works.
    """
    table = TABLES[kind]
    given, problems = parse_line(line, table, OWN_DEFAULTS)
    values, more = validate(given, table)
    request = _request(kind, values, probe())
    if problems or more:
        raise OptionError(format_problems([*problems, *more.values()], request.command))
    return request


def of(kind: str, **keywords: Any) -> Request:
    """Return what keywords ask for.

    Raises:
        OptionError: a keyword is unknown or has a wrong value.
    """
    table = TABLES[kind]
    reject_unknown(keywords, table)
    values, problems = validate(keywords, table)
    if problems:
        suggestion = ", ".join(f"{name}={values[name]!r}" for name in problems)
        raise OptionError(format_problems(problems.values(), suggestion))
    return _request(kind, values, probe())


def _request(kind: str, given: dict[str, Any], machine: Machine) -> Request:
    table = TABLES[kind]
    values = {flag.field: OWN_DEFAULTS[flag.field] for flag in table.flags} | given
    command = " ".join([table.command, *format_flags(values, table.flags, OWN_DEFAULTS)])
    steps: int = values["steps"]
    make: Callable[..., Iterable[Entry]] = _strategies if kind == "compare" else _counts
    return Request(kind, command, steps, tuple(make(values, machine)))


def _strategies(values: dict[str, Any], machine: Machine) -> Iterable[Entry]:
    names = values.pop("strategies")
    yield _alone(values)
    for name in names:
        yield _entry(name, values)


def _counts(values: dict[str, Any], machine: Machine) -> Iterable[Entry]:
    counts, strategy = values.pop("gpus"), values.pop("strategy")
    yield _alone(values)
    for count in counts or _all_counts(machine, values["cpu"]):
        if count > 1:
            yield _entry(strategy, values | {"gpus": count})


def _alone(values: Mapping[str, Any]) -> Entry:
    """Return the run on one device, which has all options of training that mean something there."""
    gpus = values.get("gpus")  # a list of them, or a number; none where numbers are compared
    first = gpus[:1] if isinstance(gpus, tuple) else 1
    nobody = {name: DEFAULTS[name] for name in (*DDP_OPTIONS, "sync_batchnorm")}  # to speak to
    return replace(_entry(ONE_DEVICE, {**values, **nobody, "gpus": first}), alone=True)


def _entry(strategy: str, values: Mapping[str, Any]) -> Entry:
    """Return the run of a strategy; options that only others know are not meant for it."""
    profile = profile_of(strategy)
    foreign = [n for n in FIELDS if n not in EVERYBODYS and n not in profile.supports]
    chosen = {**values, **{name: DEFAULTS[name] for name in foreign}}
    gpus = chosen["gpus"]
    ranks = gpus if isinstance(gpus, int) else len(gpus) if isinstance(gpus, tuple) else None
    try:
        options = RunOptions(strategy=strategy, pull=(), **chosen)
    except OptionError as error:
        return Entry(strategy, ranks, None, str(error).partition("\n")[0])
    return Entry(strategy, ranks, options)
