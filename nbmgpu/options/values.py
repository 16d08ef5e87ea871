"""How the value of each option is validated.

A value is validated in one place, whether it came as text on a line or as a Python value.
An invalid one is reported with a suggestion, so that an error can end with a line that works.
"""

from __future__ import annotations

import keyword
import math
import operator
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from nbmgpu.errors import closest_match

GpuRequest: TypeAlias = int | Literal["all"] | tuple[int, ...] | None
"""A number of GPUs, ``"all"``, indices, or None: all GPUs, or CPU ranks where there is none.

Ranks share a GPU whose index is listed more than once.
"""


@dataclass(frozen=True)
class Problem:
    """A problem with one option: the given value, and what is allowed."""

    what: str
    allowed: str = ""


class InvalidValueError(Exception):
    """A value is invalid.

    Attributes:
        problem: what is wrong.
        suggestion: the valid value that was most likely meant.
        other_options: values of other options that the suggestion needs, by field.
    """

    def __init__(self, problem: Problem, suggestion: object, **other_options: object) -> None:
        """Store the problem, and a valid value to use instead."""
        super().__init__(problem)
        self.problem = problem
        self.suggestion = suggestion
        self.other_options = other_options


def integer(value: object) -> int:
    """Return ``value`` as an integer; raise ValueError for anything else."""
    if isinstance(value, str):
        return int(value)
    if isinstance(value, bool):  # True is not a number of GPUs
        raise ValueError(value)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(value) from None


def list_of(value: object) -> tuple[object, ...]:
    """Return the items of a sequence, or of a text separated by commas or blanks."""
    if isinstance(value, str):
        return tuple(re.split(r"[,\s]+", value.strip(", \t")))
    return tuple(value) if isinstance(value, Iterable) else (value,)


def known_strategies() -> tuple[str, ...]:
    """Return the names that ``--strategy`` takes."""
    from nbmgpu.strategies import strategy_names

    return strategy_names()


def validate_strategy(value: object) -> str:
    """Return the name of a strategy, aliases resolved."""
    from nbmgpu.strategies import canonical, nearest

    name = canonical(value) if isinstance(value, str) else None
    if name is not None:
        return name
    allowed = f"Strategies: {', '.join(known_strategies())}; %mgpu pick says which fits, and why"
    problem = Problem(f"There is no strategy {value!r}", allowed)
    parts = [canonical(part) for part in str(value).split("+")]
    others = [part for part in parts if part not in ("ddp", "dp")]
    if len(parts) == 2 and len(others) == 1 and others[0] in ("fsdp", "tp", "pp"):
        mesh = ("dp=2", f"{others[0]}=2")
        raise InvalidValueError(problem, others[0], mesh=mesh)
    raise InvalidValueError(problem, nearest(str(value)))


def validate_gpus(value: object) -> GpuRequest:
    """Return a count, ``"all"``, a tuple of indices, or None."""

    def invalid(what: str, suggestion: GpuRequest) -> InvalidValueError:
        forms = "a number (2), all, or a list by index (0,2; a single one: 2,)"
        return InvalidValueError(Problem(what, f"GPUs are given as {forms}"), suggestion)

    if value is None:
        return None
    if isinstance(value, str) and value.lower() == "all":
        return "all"
    parts: object = value
    if isinstance(value, str) and "," in value:
        parts = [part for part in value.split(",") if part.strip()]
    try:
        if isinstance(parts, Iterable) and not isinstance(parts, str):
            listed = tuple(map(integer, parts))
            wanted = tuple(dict.fromkeys(i for i in listed if i >= 0))
            if not listed:
                raise invalid("The list of GPUs is empty", "all")
            if min(listed) < 0:
                raise invalid(f"There is no GPU {min(listed)}", wanted or "all")
            return listed
        count = integer(value)
    except ValueError:
        raise invalid(f"{value!r} does not name GPUs", "all") from None
    if count == 0:
        allowed = "With --cpu, ranks need no GPU; --gpus is their number"
        problem = Problem("0 GPUs cannot run a cell", allowed)
        raise InvalidValueError(problem, None, cpu=True)
    if count < 0:
        raise invalid(f"{count} GPUs cannot run a cell", "all")
    return count


def _one_of(
    *choices: str, what: str, meaning: str, default: str | None = None
) -> Callable[[object], str | None]:
    """Return a validator for one of several words; None stands for ``default``."""

    def read(value: object) -> str | None:
        if value is None or value in choices:
            return default if value is None else str(value)
        near = closest_match(str(value).lower(), choices) or choices[0]
        raise InvalidValueError(Problem(f"{what} cannot be {value!r}", meaning), near)

    return read


validate_batch = _one_of(
    "global", "per-rank", what="The batch",
    meaning="global: the batch size in the cell is that of all ranks together; "
    "per-rank: of each rank",
)  # fmt: skip
validate_precision = _one_of(
    "bf16", "fp16", "fp32", what="The precision",
    meaning="What the forward pass computes in: bf16, fp16 (with a gradient scaler) or fp32",
)  # fmt: skip
validate_exact = _one_of(
    "auto", "always", "never", what="The option --exact",
    meaning="always: the cell sees whole batches, and has the numbers of one device; never: each "
    "rank runs the cell on its part of a batch, which is faster; auto: as never, and a cell whose "
    "numbers would differ starts again as with always",
    default="auto",
)  # fmt: skip
validate_on_hang = _one_of(
    "warn", "stop", "restart", what="The option --on-hang",
    meaning="warn: when no rank makes progress, say where each one waits; stop: also end the run; "
    "restart: also start it again, at most --max-restarts times (default: 3)",
    default="warn",
)  # fmt: skip
validate_compress = _one_of(
    "bf16", "fp16", what="The compression", meaning="Gradients travel in bf16 or in fp16"
)

validate_schedule = _one_of(
    "gpipe", "interleaved", what="The schedule",
    meaning="gpipe: each rank has one stage; interleaved: two, which wait less. 1f1b and "
    "zerobubble compute each microbatch's loss in the schedule; here the cell computes it",
    default="gpipe",
)  # fmt: skip
validate_balance = _one_of(
    "parameters", "time", what="The balance of stages",
    meaning="parameters: each stage has about as many; time: about the same time of forward and "
    "backward, which is measured in the first step",
    default="parameters",
)  # fmt: skip


def count_of(
    what: str, allowed: str, suggestion: int, optional: bool = True
) -> Callable[[object], int | None]:
    """Return a validator for an integer from 1; None, for no value, is valid if ``optional``."""

    def read(value: object) -> int | None:
        if value is None and optional:
            return None
        try:
            if (number := integer(value)) >= 1:
                return number
        except ValueError:
            pass
        problem = Problem(f"{value!r} is not a number of {what}", f"{allowed}: an integer from 1")
        raise InvalidValueError(problem, suggestion)

    return read


validate_steps = count_of("optimizer steps", "The cell ends after that many steps", 20)
validate_microbatches = count_of(
    "microbatches", "The number of parts in which a batch runs through the stages", 4
)
validate_accumulate = count_of(
    "batches to accumulate", "The number of batches per optimizer step", 2, optional=False
)


def _positive(what: str, allowed: str, suggestion: float) -> Callable[[object], float | None]:
    """Return a validator for a positive number; None, for no value, is valid."""

    def read(value: object) -> float | None:
        if value is None or 0 < (number := _number(value)) < math.inf:
            return None if value is None else number
        raise InvalidValueError(Problem(f"{value!r} is {what}", allowed), suggestion)

    return read


def _number(value: object) -> float:
    """Return ``value`` as a float, nan for anything else."""
    try:
        return math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def validate_path(value: object) -> str | None:
    """Return the absolute path of an existing file, or None."""
    if value is None:
        return None
    path = os.path.expanduser(os.fspath(value)) if isinstance(value, str | os.PathLike) else ""
    if path and os.path.isfile(path):
        return str(os.path.abspath(path))
    problem = Problem(f"There is no file {value!r}", f"Relative paths start at {os.getcwd()}")
    raise InvalidValueError(problem, None)


def names_of(
    is_name: Callable[[str], object], what: str, allowed: str
) -> Callable[[object], tuple[str, ...]]:
    """Return a validator for names, which removes duplicates."""

    def read(value: object) -> tuple[str, ...]:
        words = list_of(value)
        names = [w for w in words if isinstance(w, str) and is_name(w)]
        if len(names) == len(words):
            return tuple(dict.fromkeys(names))
        wrong = ", ".join(repr(w) for w in words if w not in names)
        problem = Problem(f"{wrong} is not the name of a {what}", allowed)
        raise InvalidValueError(problem, tuple(dict.fromkeys(names)))

    return read


validate_classes = names_of(
    str.isidentifier, "module class", "Class names, such as BertLayer,BertEmbeddings"
)


def validate_seed(value: object) -> int | None:
    """Return a seed of 32 bits, or None."""
    try:
        if value is None or 0 <= (seed := integer(value)) < 2**32:
            return None if value is None else seed
    except ValueError:
        pass
    problem = Problem(f"{value!r} is not a seed", "A seed is an integer from 0 to 4294967295")
    raise InvalidValueError(problem, 0)


validate_clip = _positive("not a gradient norm", "The maximum norm is a number above 0", 1.0)
validate_timeout = _positive("not a time limit", "The limit is a number of seconds above 0", 600.0)
_validate_seconds = _positive(
    "not a duration", "A duration is a number of seconds above 0, or 10s, 5m, 1h", 60.0
)
SECONDS = {"s": 1, "m": 60, "h": 3600}
"""Seconds per unit of a duration."""


def validate_hang_after(value: object) -> float | None:
    """Return seconds above 0, also given as ``10s``, ``5m`` or ``1h``; None for the default."""
    if isinstance(value, str) and value[-1:] in SECONDS:
        number = _number(value[:-1])
        if 0 < number < math.inf:
            return number * SECONDS[value[-1]]
    return _validate_seconds(value)


def validate_pull(value: object) -> tuple[str, ...] | None:
    """Return names of variables to write back; None for all, ``()`` for none."""
    if value is None:
        return None
    words = list_of(value)
    if isinstance(value, str) and words == ("",):
        words = ()  # pull="" means --no-pull
    names, wrong = [], []
    for word in words:
        head = word.partition(".")[0] if isinstance(word, str) else ""
        if word != head or not head.isidentifier() or keyword.iskeyword(head):
            wrong.append(word)
        if head.isidentifier() and not keyword.iskeyword(head):
            names.append(head)
    if wrong:
        problem = Problem(
            f"{', '.join(map(repr, wrong))} cannot be pulled",
            "Whole variables are written back, by name, such as model,loss",
        )
        raise InvalidValueError(problem, tuple(dict.fromkeys(names)) or None)
    return tuple(dict.fromkeys(names))


def validate_switch(value: object) -> bool:
    """Return a bool; nothing else is converted."""
    if isinstance(value, bool):
        return value
    raise InvalidValueError(Problem(f"{value!r} is neither True nor False"), bool(value))
