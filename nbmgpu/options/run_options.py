"""What was asked of a run: ``RunOptions``, from a ``%%mgpu`` line or from Python.

Both ways meet in the same checks, those of ``nbmgpu.options.flags``.  Reading never stops
at the first slip: all are collected, each with what was most likely meant, so that
an error says everything that is wrong and ends with a line that works.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from nbmgpu.errors import OptionError
from nbmgpu.strategies import profile_of
from nbmgpu.strategies.strategy_options import Tuning

from .flags import FLAGS, RUN, GpuRequest, Slip
from .parsing import check_names, explain, read_line, read_values, spell, written


@dataclass(frozen=True)
class RunOptions(Tuning):
    """What was asked of a run, and how its strategy is tuned.

    Made with ``parse`` or ``of``; wrong values raise OptionError.

    Attributes:
        strategy: by its name in ``nbmgpu.strategies``, aliases resolved.
        gpus: a count, ``"all"``, a tuple of indices, or None for all there are (two CPU
            ranks when there is none).
        cpu: as if the machine had no GPU, so that a list only says how many ranks.
        batch: whether the loader's batch is the global one, or each rank's.
        seed: of all random numbers in the ranks; None for the notebook's random state.
        pull: names to bring back: None for every name the cell assigns, ``()`` for none.
        background: whether the call returns at once.
        timeout: seconds after which the run is ended; None for no limit.
        steps: optimizer steps after which the cell is over; None for all.
        dry_run: whether the plan is shown, and nothing started.
        fresh: whether ranks are started anew by torchrun, not forked from the launch server.
    """

    strategy: str = "ddp"
    gpus: GpuRequest = None
    cpu: bool = False
    batch: Literal["global", "per-rank"] = "global"
    seed: int | None = None
    pull: tuple[str, ...] | None = None
    background: bool = False
    timeout: float | None = None
    steps: int | None = None
    dry_run: bool = False
    fresh: bool = False

    def __post_init__(self) -> None:
        """Bring every field into its type, or say what is wrong with it."""
        given = {flag.field: getattr(self, flag.field) for flag in FLAGS}
        values, slips = read_values(given, RUN)
        slips |= _refusals(values)
        if slips:
            changed = {name: value for name, value in values.items() if name in slips}
            if values["strategy"] != given["strategy"]:  # by an alias, or to one that can have it
                changed["strategy"] = values["strategy"]
            mended = ", ".join(f"{name}={value!r}" for name, value in changed.items())
            raise OptionError(explain(slips.values(), mended))
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, **keywords: Any) -> RunOptions:
        """Return the options that a Python caller gives; unknown keywords are refused like flags.

        Raises:
            OptionError: a keyword is unknown or has a wrong value.
        """
        check_names(keywords, RUN)
        return cls(**keywords)

    @classmethod
    def parse(cls, line: str) -> RunOptions:
        """Return the options of a ``%%mgpu`` line, given without ``%%mgpu`` itself.

        Raises:
            OptionError: it says everything that is wrong, and ends with a line that works.
        """
        given, slips = read_line(line, RUN, DEFAULTS)
        values, more = read_values(given, RUN)
        more |= _refusals(values)
        options = cls(**values)
        if slips or more:
            raise OptionError(explain([*slips, *more.values()], options.command))
        return options

    def line(self) -> str:
        """Return the options as ``parse`` reads them: the strategy, then what is not default."""
        words = written(dataclasses.asdict(self), FLAGS[1:], DEFAULTS)
        return " ".join(["--strategy", self.strategy, *words])

    @property
    def command(self) -> str:
        """The first line of a cell that asks for these options."""
        return f"%%mgpu {self.line()}"


DEFAULTS = {f.name: f.default for f in dataclasses.fields(RunOptions)}
"""What each option is when nothing is said."""


def _refusals(values: dict[str, Any]) -> dict[str, Slip]:
    """Return a slip for each option that the strategy cannot have, and mend ``values``.

    The nearest that works is another strategy if the profile names one, else the same
    without the option.
    """
    profile = profile_of(values.get("strategy", DEFAULTS["strategy"]))
    given = Tuning.among(values).given()
    slips = {}
    for name in given:
        value = values[name]
        if reason := profile.reason(name, value):
            flag = next(flag for flag in FLAGS if flag.field == name)
            spelled = f"{flag.name} {spell(value)}" if flag.metavar else flag.name
            slips[name] = Slip(f"{profile.name} cannot have {spelled}: {reason}")
            other = profile.instead.get(f"{name}={value}") or profile.instead.get(name)
            if other and not any(profile_of(other).reason(n, values[n]) for n in given):
                values["strategy"] = other
            else:
                values[name] = DEFAULTS[name]
    return slips
