"""``RunOptions``: the options of a run, from a ``%%mgpu`` line or from Python.

``nbmgpu.options.values`` validates both.  All problems are collected, each with a suggestion, so
that an error lists everything that is wrong and ends with a line that works.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nbmgpu.errors import OptionError
from nbmgpu.runs.engine_plugins import DEFAULT_ENGINE
from nbmgpu.strategies import has_dimensions, profile_of, with_mesh
from nbmgpu.strategies.profiles import BUILT_IN
from nbmgpu.strategies.strategy_options import StrategyOptions

from .checkpoint_options import CheckpointOptions
from .engine_options import DETACHED_LIMIT, EngineOptions
from .engine_profiles import with_profile, with_profile_name
from .export_options import ExportOptions
from .flags import FLAGS, RUN
from .hold_options import HoldOptions, options_without_hold
from .label_options import LabelOptions
from .parsing import (
    format_flags,
    format_problems,
    format_value,
    parse_line,
    reject_unknown,
    validate,
)
from .profile_options import ProfileOptions
from .values import GpuRequest, Problem
from .verify_options import VerifyOptions


@dataclass(frozen=True)
class RunOptions(
    LabelOptions,
    CheckpointOptions,
    EngineOptions,
    ExportOptions,
    HoldOptions,
    ProfileOptions,
    VerifyOptions,
    StrategyOptions,
):
    """The options of a run, with those of its labels, checkpoints, engine, export and strategy.

    Made by ``parse`` or ``of``; invalid values raise OptionError.

    Attributes:
        strategy: by its name in ``nbmgpu.strategies``, aliases resolved.
        gpus: a count, ``"all"``, a tuple of indices, or None for all there are (two CPU
            ranks when there is none).
        cpu: as if the machine had no GPU, so that a list only says how many ranks.
        batch: whether the loader's batch is the global one, or each rank's.
        seed: of all random numbers in the ranks; None for the notebook's random state.
        pull: names to bring back: None for every name the cell assigns, ``()`` for none.
        background: whether the call returns at once; see also ``in_background``.
        timeout: seconds after which the run is ended; see also ``time_limit``.
        on_hang: what to do when ranks make no progress, besides saying where each one waits.
        hang_after: seconds without progress that count as a hang; None for the default.
        steps: optimizer steps after which the cell is over; None for all.
        dry_run: whether the plan is shown, and nothing started.
        fresh: whether ranks are started anew by torchrun, not forked from the fork server.
    """

    strategy: str = "ddp"
    gpus: GpuRequest = None
    cpu: bool = False
    batch: Literal["global", "per-rank"] = "global"
    seed: int | None = None
    pull: tuple[str, ...] | None = None
    background: bool = False
    timeout: float | None = None
    on_hang: Literal["warn", "stop", "restart"] = "warn"
    hang_after: float | None = None
    steps: int | None = None
    dry_run: bool = False
    fresh: bool = False

    def __post_init__(self) -> None:
        """Convert every field to its type, or raise OptionError with all problems."""
        given = {flag.field: getattr(self, flag.field) for flag in FLAGS}
        values, problems = validate(given, RUN)
        values["strategy"] = with_mesh(values["strategy"], values["mesh"])
        problems |= _unsupported_options(values) | _contradictions(values)
        if problems:
            changed = {name: value for name, value in values.items() if name in problems}
            # By an alias, or to one that supports the option.
            for name in ("strategy", "engine"):
                if values[name] != given[name]:
                    changed[name] = values[name]
            suggestion = ", ".join(f"{name}={value!r}" for name, value in changed.items())
            raise OptionError(format_problems(problems.values(), suggestion))
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, **keywords: Any) -> RunOptions:
        """Return the options of keyword arguments.

        Raises:
            OptionError: a keyword is unknown or has a wrong value.
        """
        reject_unknown(keywords, RUN)
        return cls(**_with_strategy_of_mesh(with_profile(keywords)))

    @classmethod
    def parse(cls, line: str) -> RunOptions:
        """Return the options of a ``%%mgpu`` line, without the word ``%%mgpu``.

        Raises:
            OptionError: the message lists every problem and ends with a line that works.
        """
        given, problems = parse_line(line, RUN, DEFAULTS)
        values, more = validate(_with_strategy_of_mesh(with_profile(given)), RUN)
        if "engine" in more:  # a profile may be suggested
            values, _ = validate(with_profile(values), RUN)
        if "strategy" not in values:
            more = _mesh_of_no_strategy(values) | more
        if "strategy" in values:
            values["strategy"] = with_mesh(values["strategy"], values.get("mesh", ()))
        more |= _unsupported_options(values) | _contradictions(values)
        options = cls(**values)
        if problems or more:
            raise OptionError(format_problems([*problems, *more.values()], options.command))
        return options

    @property
    def in_background(self) -> bool:
        """Whether the call returns at once: the shutdown of a kernel interrupts what it waits for.

        So a detached run is in the background, too.
        """
        return self.background or self.is_detached

    @property
    def waits_here(self) -> bool:
        """Whether the kernel waits until ranks on its own machine have ended."""
        return self.engine == "local" and not self.in_background and not self.hold

    @property
    def time_limit(self) -> float | None:
        """Seconds after which the run is ended; None for no limit."""
        return self.timeout or (DETACHED_LIMIT if self.is_detached else None)

    @property
    def may_restart(self) -> bool:
        """Whether a cell whose numbers would differ starts again with ``--exact always``."""
        contradicted = any(getattr(self, n) != DEFAULTS[n] for n in INEXACT)
        is_automatic = self.exact == "auto" and self._is_exact
        return is_automatic and not self.in_background and not contradicted

    @property
    def verified_seconds(self) -> float:
        """Seconds for which a reference compares the ranks with one device; 0 for none."""
        is_here = self.engine == "local" and not self.fresh and self.resume is None
        is_timed = self.profile is not None
        differs = self.batch == "per-rank" or self.compress is not None or self.precision == "fp16"
        knows_gradients = not self.strategy.startswith("deepspeed")
        is_possible = self._is_exact and is_here and knows_gradients and not (differs or is_timed)
        return self.verify if is_possible else 0.0

    @property
    def _is_exact(self) -> bool:
        """Whether numbers are to be those of one device, as far as this can be."""
        return self.exact != "never" and "exact" in profile_of(self.strategy).options.supported

    def line(self) -> str:
        """Return a line for ``parse``: the strategy, then what differs from the defaults."""
        return _line(dataclasses.asdict(self))

    @property
    def command(self) -> str:
        """The first line of a cell with these options, with the engine profile that has them."""
        values = with_profile_name(dataclasses.asdict(self), DEFAULTS, RUN.validators)
        return f"%%mgpu {_line(values)}"


DEFAULTS = {f.name: f.default for f in dataclasses.fields(RunOptions)}
"""The default of each option."""


def _line(values: Mapping[str, Any]) -> str:
    return " ".join(["--strategy", values["strategy"], *format_flags(values, FLAGS[1:], DEFAULTS)])


def _with_strategy_of_mesh(given: Mapping[str, Any]) -> dict[str, Any]:
    """Add the strategy that a mesh needs, if none is given: ``--mesh dp=2,tp=2`` needs ``tp``."""
    if "strategy" in given or not given.get("mesh"):
        return dict(given)
    values, problems = validate({"mesh": given["mesh"]}, RUN)
    name = None if problems else with_mesh(None, values["mesh"])
    return {**given, **({"strategy": name} if name else {})}


def _mesh_of_no_strategy(values: dict[str, Any]) -> dict[str, Problem]:
    """Return a problem for a mesh that no strategy has, and shorten it in ``values``."""
    mesh = list(values.get("mesh", ()))
    several = [word.partition("=")[0] for word in mesh if not word.endswith("=1")]
    if {*several} <= {"dp"}:
        return {}
    known = list(dict.fromkeys(dim for profile in BUILT_IN.values() for dim in profile.mesh))
    unknown = [name for name in several if name not in known]
    what = (
        f"--mesh: there is no dimension {unknown[0]}" if unknown
        else f"No strategy has a mesh of {' and '.join(several)}"
    )  # fmt: skip
    mesh = [word for word in mesh if word.partition("=")[0] in known]
    while mesh and with_mesh(None, mesh) is None:
        mesh.pop()
    values |= {"mesh": tuple(mesh), "strategy": with_mesh(None, mesh) or DEFAULTS["strategy"]}
    combined = ", ".join(name for name in BUILT_IN if "+" in name)
    return {"mesh": Problem(what, f"Dimensions: {', '.join(known)}; together: {combined}")}


def _contradictions(values: dict[str, Any]) -> dict[str, Problem]:
    """Return a problem where two options contradict each other, and correct ``values``."""
    problems = _options_of_one_machine(values) | options_without_hold(values, DEFAULTS)
    if values.get("exact") == "always":
        return problems | _inexact_options(values)
    if not values.get("split_points") or values.get("balance", "parameters") == "parameters":
        return problems
    values["balance"] = "parameters"
    what = "--split-points and --balance time both say where stages begin"
    return problems | {"balance": Problem(what, "One of them")}


def _options_of_one_machine(values: dict[str, Any]) -> dict[str, Problem]:
    """Return a problem for options that the engine of this machine does not have."""
    if values.get("engine", DEFAULT_ENGINE) != DEFAULT_ENGINE:
        return {}
    problems = {}
    if (values.get("nodes") or 1) > 1:
        what = f"--nodes {values['nodes']} needs an engine for several machines"
        problems["nodes"] = Problem(what, "The default engine is this machine alone")
    if values.get("engine_option"):
        what = "--engine-option tells an engine for several machines what to do"
        problems["engine_option"] = Problem(what, "The default engine is this machine, without any")
    if problems and not values.get("hold"):
        values["engine"] = "slurm"
    elif problems:  # only this machine holds ranks
        values |= {"nodes": None, "engine_option": ()}
    return problems


def _inexact_options(values: dict[str, Any]) -> dict[str, Problem]:
    """Return a problem for each option that contradicts ``--exact always``, and correct it."""
    problems = {}
    for name, reason in INEXACT.items():
        if (value := values.get(name, DEFAULTS[name])) != DEFAULTS[name]:
            flag = next(flag for flag in FLAGS if flag.field == name)
            spelled = f"{flag.name} {format_value(value)}" if flag.metavar else flag.name
            problems[name] = Problem(f"--exact always excludes {spelled}: {reason}")
            values[name] = DEFAULTS[name]
    return problems


INEXACT = {
    "batch": "one device has no batch for each rank",
    "compress": "it rounds gradients",
    "compile": "collectives between the ranks would end each compiled graph",
}
"""Options that contradict ``--exact always``, and why."""


def _unsupported_options(values: dict[str, Any]) -> dict[str, Problem]:
    """Return a problem for each option that the strategy does not support, and correct ``values``.

    The correction is another strategy if the profile names one, else the strategy without the
    option.
    """
    profile = profile_of(values.get("strategy", DEFAULTS["strategy"]))
    given = StrategyOptions.from_mapping(values).non_default()
    problems = {}
    for name in given:
        value = values[name]
        if reason := profile.options.reason(name, value):
            flag = next(flag for flag in FLAGS if flag.field == name)
            spelled = f"{flag.name} {format_value(value)}" if flag.metavar else flag.name
            problems[name] = Problem(f"{profile.name} does not support {spelled}: {reason}")
            other = profile.options.alternative(name, value)
            if name == "mesh":
                fits = other is not None and has_dimensions(other, value)
                other = with_mesh(None, value) or (other if fits else None)
            if other and not any(profile_of(other).options.reason(n, values[n]) for n in given):
                values["strategy"] = other
            else:
                values[name] = DEFAULTS[name]
    return problems
