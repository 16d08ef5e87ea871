"""What was asked of a run: ``RunOptions``, from a ``%%mgpu`` line or from Python.

Both ways meet in the same checks, those of ``nbmgpu.flags``.  Reading never stops
at the first slip: all are collected, each with what was most likely meant, so that
an error says everything that is wrong and ends with a line that works.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .errors import OptionError, closest, compose
from .flags import (
    FLAGS,
    READERS,
    SPELLINGS,
    Flag,
    GpuRequest,
    MisreadError,
    Slip,
    help_text,
)
from .strategies import canonical, profile_of
from .strategies.tuning import Precision, Tuning


@dataclass(frozen=True)
class RunOptions:
    """What was asked of a run.  Made with ``parse`` or ``of``; wrong values raise OptionError.

    ``gpus`` is a count, ``"all"``, a tuple of indices, or None for all there are (two
    CPU ranks when there is none).  ``cpu`` means: as if the machine had no GPU, so
    that a list then only says how many ranks.  ``pull`` holds the names to bring
    back: None for every name the cell assigns, ``()`` for nothing.  The fields from
    ``accumulate`` on are those of ``nbmgpu.strategies.tuning.Tuning``.
    """

    strategy: str = "ddp"
    gpus: GpuRequest = None
    cpu: bool = False
    batch: Literal["global", "per-rank"] = "global"
    seed: int | None = None
    pull: tuple[str, ...] | None = None
    background: bool = False
    timeout: float | None = None
    dry_run: bool = False
    fresh: bool = False
    accumulate: int = 1
    precision: Precision | None = None
    compile: bool = False
    clip: float | None = None
    checkpointing: bool = False
    sync_batchnorm: bool = False
    find_unused: bool = False
    static_graph: bool = False
    bucket_views: bool = False
    compress: Literal["bf16", "fp16"] | None = None
    fsdp_units: tuple[str, ...] = ()
    cpu_offload: bool = False
    deepspeed_config: str | None = None

    def __post_init__(self) -> None:
        """Bring every field into its type, or say what is wrong with it."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values, slips = _read_values(given)
        slips |= _refusals(values)
        if slips:
            mended = ", ".join(f"{name}={values[name]!r}" for name in slips)
            raise OptionError(_explain(slips.values(), mended))
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, **keywords: Any) -> RunOptions:
        """Return the options that a Python caller gives; unknown keywords are refused like flags.

        Raises:
            OptionError: a keyword is unknown or has a wrong value.
        """
        for name, value in keywords.items():
            if name not in READERS:
                near = closest(name, READERS)
                known = f"Options: {', '.join(READERS)}"
                instead = f"{near}={value!r}" if near else ""
                raise OptionError(compose(f"There is no option {name!r}", known, instead))
        return cls(**keywords)

    @classmethod
    def parse(cls, line: str) -> RunOptions:
        """Return the options of a ``%%mgpu`` line, given without ``%%mgpu`` itself.

        Raises:
            OptionError: it says everything that is wrong, and ends with a line that works.
        """
        given, slips = _split_line(line)
        values, more = _read_values(given)
        more |= _refusals(values)
        options = cls(**values)
        if slips or more:
            raise OptionError(_explain([*slips, *more.values()], options.command))
        return options

    def line(self) -> str:
        """Return the options as ``parse`` reads them: the strategy, then what is not default."""
        words = ["--strategy", self.strategy]
        for flag in FLAGS[1:]:
            value = getattr(self, flag.field)
            if flag.metavar and value not in (None, (), DEFAULTS[flag.field]):
                words += [flag.name, _spell(value)]
            elif not flag.metavar and value == flag.constant:
                words.append(flag.name)
        return " ".join(words)

    @property
    def command(self) -> str:
        """The first line of a cell that asks for these options."""
        return f"%%mgpu {self.line()}"


DEFAULTS = {f.name: f.default for f in dataclasses.fields(RunOptions)}
"""What each option is when nothing is said."""


def _spell(value: object) -> str:
    """Write a value as a flag takes it."""
    if isinstance(value, tuple):
        text = ",".join(map(str, value))
        return text + "," if value and value[1:] == () and isinstance(value[0], int) else text
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _explain(slips: Iterable[Slip], instead: str) -> str:
    """Compose one message of all slips and what to type."""
    return compose("\n".join(compose(s.what, s.allowed) for s in slips), instead=instead)


def _read_values(given: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Slip]]:
    """Read each field with its flag's check; a wrong one is noted and mended."""
    values: dict[str, Any] = {}
    slips: dict[str, Slip] = {}
    for name, value in given.items():
        try:
            values[name] = READERS[name](value)
        except MisreadError as misread:
            values[name] = misread.mend
            slips[name] = misread.slip
    return values, slips


def _refusals(values: dict[str, Any]) -> dict[str, Slip]:
    """Return a slip for each option that the strategy cannot have, and mend ``values``.

    The nearest that works is another strategy if the profile names one, else the same
    without the option.
    """
    profile = profile_of(values.get("strategy", DEFAULTS["strategy"]))
    given = Tuning.of(values).given()
    slips = {}
    for name in given:
        value = values[name]
        if reason := profile.reason(name, value):
            flag = next(flag for flag in FLAGS if flag.field == name)
            spelled = f"{flag.name} {_spell(value)}" if flag.metavar else flag.name
            slips[name] = Slip(f"{profile.name} cannot have {spelled}: {reason}")
            other = profile.instead.get(f"{name}={value}") or profile.instead.get(name)
            if other and not any(profile_of(other).reason(n, values[n]) for n in given):
                values["strategy"] = other
            else:
                values[name] = DEFAULTS[name]
    return slips


def _split_line(line: str) -> tuple[dict[str, object], list[Slip]]:
    """Return the text, or constant, that a line gives to each field, and what is wrong with it.

    Reading never stops at a slip: the flag most likely meant is taken instead, so
    that what is understood of the line can be shown as a line that works.
    """
    given: dict[str, object] = {}
    sources: dict[str, Flag] = {}
    slips = []
    try:
        queue = deque(shlex.split(line, comments=True))
    except ValueError:
        slips.append(Slip("A quote is not closed"))
        queue = deque(re.sub("[\"'\\\\]", " ", line).split())
    while queue:
        word, equals, text = queue.popleft().partition("=")
        if attached := re.fullmatch(r"(-[a-z])(\d[\d,]*)", word):  # -g2
            word, equals, text = attached[1], "=", attached[2]
        flag = SPELLINGS.get(word)
        if flag is None:
            flag, alone = _guess(word, given)
            slips.append(_unknown(word, flag))
            equals, text = ("=", word) if alone else (equals, text)
        words = [text] if text else []
        takes = flag is None or (flag.metavar and not equals)
        while takes and queue and not _is_flag(queue[0]):
            words.append(queue.popleft())
            takes = flag is None or flag.several
        if flag is None:
            continue
        if flag.field in given:
            slips.append(_repeated(sources[flag.field], flag))
            continue
        sources[flag.field] = flag
        if not flag.metavar:
            given[flag.field] = flag.constant
            if words:
                slips.append(Slip(f"{flag.name} takes no value, but has {words[0]!r}"))
        elif words:
            given[flag.field] = ",".join(words)
        else:
            slips.append(Slip(f"{flag.name} has no value", f"It is written {flag.usage}"))
            given[flag.field] = DEFAULTS[flag.field] or next(iter(flag.values()), None)
    return given, slips


def _is_flag(word: str) -> bool:
    """Tell a flag, known or not, from a value: ``-1`` is a value."""
    return re.match(r"--?[A-Za-z]", word) is not None


def _guess(word: str, given: Mapping[str, object]) -> tuple[Flag | None, bool]:
    """Return the flag most likely meant, and whether the word is its value rather than its name."""
    if re.fullmatch(r"[\d,]+|all", word):
        return (None if "gpus" in given else SPELLINGS["--gpus"]), True
    if canonical(word):
        return (None if "strategy" in given else SPELLINGS["--strategy"]), True
    if word in ("--help", "-h", "help", "?"):
        return None, False
    near = closest("--" + word.lstrip("-").replace("_", "-").lower(), SPELLINGS)
    return (SPELLINGS[near] if near else None), False


def _unknown(word: str, flag: Flag | None) -> Slip:
    """Say that a word is no flag, and name the nearest, or all."""
    what = f"There is no flag {word}" if word.startswith("-") else f"{word!r} is not a flag"
    if flag is None:
        return Slip(what, f"Flags:\n{help_text()}")
    return Slip(what, f"The nearest is {flag.name}: {flag.help}")


def _repeated(first: Flag, second: Flag) -> Slip:
    """Say that two flags set the same field."""
    if first is second:
        return Slip(f"{first.name} is given twice")
    reason = f"{first.name} is to {first.help}, {second.name} to {second.help}"
    return Slip(f"{first.name} and {second.name} contradict each other", reason)
