"""The flags of ``%%mgpu``: a table, from which parser, Tab completion and help are made.

A value is checked in one place, its flag's ``read``, whether it came as text on
a line or as a Python value.  A wrong one comes with the value most likely meant,
so that an error can end with a line that works.
"""

from __future__ import annotations

import keyword
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from nbmgpu.errors import closest

GpuRequest: TypeAlias = int | Literal["all"] | tuple[int, ...] | None
"""How many GPUs, ``"all"`` of them, which ones by index, or None: all there are, else CPU ranks."""

COMMANDS = {
    "runs": "list the runs, newest first",
    "show": "show one run: its state, curves, notices and folder",
    "attach": "follow a run here, and bring its results back",
    "stop": "stop a run; the second time at once, without its results",
    "info": "show devices, versions and what is missing",
    "advise": "say which strategy to take for a model: %mgpu advise model optimizer loader",
    "pick": "choose a strategy by hand, with what each would hold and cost",
}
"""The subcommands of the line magic ``%mgpu``."""


@dataclass(frozen=True)
class Slip:
    """One thing that is wrong with what was asked: what was given, what is allowed."""

    what: str
    allowed: str = ""


class MisreadError(Exception):
    """A value cannot be used; ``mend`` is the one most likely meant."""

    def __init__(self, slip: Slip, mend: object) -> None:
        """Carry what is wrong and a valid value in its place."""
        super().__init__(slip)
        self.slip = slip
        self.mend = mend


def _integer(value: object) -> int:
    """Return the whole number that ``value`` is or spells; ValueError for anything else."""
    if isinstance(value, str):
        return int(value)
    if isinstance(value, bool):  # True is no number of GPUs
        raise ValueError(value)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(value) from None


def list_of(value: object) -> tuple[object, ...]:
    """Return the parts of a list that is written with commas or blanks, or is one already."""
    if isinstance(value, str):
        return tuple(re.split(r"[,\s]+", value.strip(", \t")))
    return tuple(value) if isinstance(value, Iterable) else (value,)


def known_strategies() -> tuple[str, ...]:
    """Return the names that ``--strategy`` takes."""
    from nbmgpu.strategies import strategy_names

    return strategy_names()


def _read_strategy(value: object) -> str:
    from nbmgpu.strategies import canonical, nearest

    name = canonical(value) if isinstance(value, str) else None
    if name is not None:
        return name
    slip = Slip(f"There is no strategy {value!r}", f"Strategies: {', '.join(known_strategies())}")
    raise MisreadError(slip, nearest(str(value)))


def _read_gpus(value: object) -> GpuRequest:
    def misread(what: str, mend: GpuRequest) -> MisreadError:
        forms = "a number (2), all, or a list by index (0,2; a single one: 2,)"
        return MisreadError(Slip(what, f"GPUs are given as {forms}"), mend)

    if value is None:
        return None
    if isinstance(value, str) and value.lower() == "all":
        return "all"
    parts: object = value
    if isinstance(value, str) and "," in value:
        parts = [part for part in value.split(",") if part.strip()]
    try:
        if isinstance(parts, Iterable) and not isinstance(parts, str):
            listed = tuple(map(_integer, parts))
            wanted = tuple(dict.fromkeys(i for i in listed if i >= 0))
            if not listed:
                raise misread("The list of GPUs is empty", "all")
            if min(listed) < 0:
                raise misread(f"GPU {min(listed)} cannot exist", wanted or "all")
            if wanted != listed:
                raise misread("The list of GPUs names one twice", wanted)
            return listed
        count = _integer(value)
    except ValueError:
        raise misread(f"{value!r} does not say which GPUs", "all") from None
    if count == 0:
        raise misread("0 GPUs cannot run a cell; CPU ranks are had with --cpu", 1)
    if count < 0:
        raise misread(f"{count} GPUs cannot run a cell", "all")
    return count


def _one_of(*choices: str, what: str, meaning: str) -> Callable[[object], str | None]:
    """Return a check for one word of several; None, where nothing was given, passes."""

    def read(value: object) -> str | None:
        if value is None or value in choices:
            return value if value is None else str(value)
        near = closest(str(value).lower(), choices) or choices[0]
        raise MisreadError(Slip(f"{what} cannot be {value!r}", meaning), near)

    return read


_read_batch = _one_of(
    "global", "per-rank", what="The batch",
    meaning="global: the batch size in the cell is that of all ranks together; "
    "per-rank: of each rank",
)  # fmt: skip
_read_precision = _one_of(
    "bf16", "fp16", "fp32", what="The precision",
    meaning="What the forward pass computes in: bf16, fp16 (with a gradient scaler) or fp32",
)  # fmt: skip
_read_compress = _one_of(
    "bf16", "fp16", what="The compression", meaning="Gradients travel in bf16 or in fp16"
)


def _read_accumulate(value: object) -> int:
    try:
        if (passes := _integer(value)) >= 1:
            return passes
    except ValueError:
        pass
    slip = Slip(
        f"{value!r} is no number of batches to accumulate",
        "A step then follows on that many batches: a whole number from 1",
    )
    raise MisreadError(slip, 2)


def _read_steps(value: object) -> int | None:
    try:
        if value is None or (steps := _integer(value)) >= 1:
            return None if value is None else steps
    except ValueError:
        pass
    slip = Slip(
        f"{value!r} is no number of optimizer steps",
        "The cell ends after that many: a whole number from 1",
    )
    raise MisreadError(slip, 20)


def _positive(what: str, allowed: str, mend: float) -> Callable[[object], float | None]:
    """Return a check for a number above 0; None, where nothing was given, passes."""

    def read(value: object) -> float | None:
        if value is None or 0 < (number := _number(value)) < math.inf:
            return None if value is None else number
        raise MisreadError(Slip(f"{value!r} is {what}", allowed), mend)

    return read


def _number(value: object) -> float:
    """Return the number that ``value`` is or spells, nan for anything else."""
    try:
        return math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def _read_path(value: object) -> str | None:
    if value is None:
        return None
    path = os.path.expanduser(os.fspath(value)) if isinstance(value, str | os.PathLike) else ""
    if path and os.path.isfile(path):
        return str(os.path.abspath(path))
    slip = Slip(f"There is no file {value!r}", f"It is looked for in {os.getcwd()}")
    raise MisreadError(slip, None)


def _read_classes(value: object) -> tuple[str, ...]:
    words = list_of(value)
    names = [w for w in words if isinstance(w, str) and w.isidentifier()]
    if len(names) == len(words):
        return tuple(dict.fromkeys(names))
    wrong = ", ".join(repr(w) for w in words if w not in names)
    slip = Slip(
        f"{wrong} cannot be the class of a module",
        "Names of classes, such as BertLayer,BertEmbeddings",
    )
    raise MisreadError(slip, tuple(dict.fromkeys(names)))


def _read_seed(value: object) -> int | None:
    try:
        if value is None or 0 <= (seed := _integer(value)) < 2**32:
            return None if value is None else seed
    except ValueError:
        pass
    slip = Slip(f"{value!r} is no seed", "A seed is a whole number from 0 to 4294967295")
    raise MisreadError(slip, 0)


_read_clip = _positive("no norm to clip at", "It is a number above 0", 1.0)
_read_timeout = _positive("no time limit", "It is given in seconds", 600.0)


def _read_pull(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    words = list_of(value)
    if isinstance(value, str) and words == ("",):
        words = ()  # pull="" is --no-pull
    names, wrong = [], []
    for word in words:
        head = word.partition(".")[0] if isinstance(word, str) else ""
        if word != head or not head.isidentifier() or keyword.iskeyword(head):
            wrong.append(word)
        if head.isidentifier() and not keyword.iskeyword(head):
            names.append(head)
    if wrong:
        slip = Slip(
            f"{', '.join(map(repr, wrong))} cannot be pulled",
            "Names of the cell come back whole, such as model,loss",
        )
        raise MisreadError(slip, tuple(dict.fromkeys(names)) or None)
    return tuple(dict.fromkeys(names))


def _read_switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise MisreadError(Slip(f"{value!r} is neither True nor False"), bool(value))


def _nothing() -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Flag:
    """One flag: how it is written and which field of ``RunOptions`` it sets.

    ``read`` checks a value, text or not, and returns it in the field's type.
    ``values`` gives the texts that Tab offers, the likeliest first.  A flag without
    ``metavar`` is a switch: it takes no value and sets ``constant``.  ``several``
    means that it takes every word up to the next flag.
    """

    name: str
    field: str
    help: str
    short: str = ""
    metavar: str = ""
    read: Callable[[object], object] = _read_switch
    values: Callable[[], tuple[str, ...]] = _nothing
    several: bool = False
    constant: object = True

    @property
    def usage(self) -> str:
        """The flag as help shows it: ``--gpus, -g N|all|0,2``."""
        spelled = f"{self.name}, {self.short}" if self.short else self.name
        return f"{spelled} {self.metavar}".rstrip()


FLAGS = (
    Flag(
        "--strategy", "strategy", "how the ranks share the training (default: ddp)",
        short="-s", metavar="NAME", read=_read_strategy, values=known_strategies,
    ),
    Flag(
        "--gpus", "gpus", "how many, or which by index (default: all; without any, 2 CPU ranks)",
        short="-g", metavar="N|all|0,2", read=_read_gpus, values=lambda: ("all",), several=True,
    ),
    Flag("--cpu", "cpu", "run on CPU ranks with gloo, whatever GPUs there are"),
    Flag(
        "--batch", "batch", "the cell's batch size is all ranks' (global, default) or each one's",
        metavar="global|per-rank", read=_read_batch, values=lambda: ("global", "per-rank"),
    ),
    Flag(
        "--seed", "seed", "seed every rank's random generators",
        metavar="N", read=_read_seed, values=lambda: ("0", "42"),
    ),
    Flag(
        "--pull", "pull", "bring back these names alone (default: all that the cell assigns)",
        metavar="NAMES", read=_read_pull, several=True,
    ),
    Flag(
        "--no-pull", "pull", "bring back no name; objects still come back changed in place",
        read=_read_pull, constant=(),
    ),
    Flag("--background", "background", "return at once; results come back when it ends"),
    Flag(
        "--timeout", "timeout", "stop the run after this many seconds",
        metavar="SECONDS", read=_read_timeout, values=lambda: ("600", "3600"),
    ),
    Flag(
        "--steps", "steps", "end the cell after this many optimizer steps",
        metavar="N", read=_read_steps, values=lambda: ("20", "100"),
    ),
    Flag("--dry-run", "dry_run", "start nothing; show what would be shipped and what comes back"),
    Flag("--fresh", "fresh", "start the ranks with torchrun in new processes (slower)"),
    Flag(
        "--accumulate", "accumulate", "take an optimizer step on every N batches only",
        metavar="N", read=_read_accumulate, values=lambda: ("2", "4", "8"),
    ),
    Flag(
        "--precision", "precision", "what the forward pass computes in (default: as the cell says)",
        metavar="bf16|fp16|fp32", read=_read_precision, values=lambda: ("bf16", "fp16", "fp32"),
    ),
    Flag("--compile", "compile", "compile the model with torch.compile"),
    Flag(
        "--clip", "clip", "clip the gradients' norm before each step",
        metavar="NORM", read=_read_clip, values=lambda: ("1.0",),
    ),
    Flag("--checkpointing", "checkpointing", "recompute activations in the backward pass"),
    Flag("--sync-batchnorm", "sync_batchnorm", "batch statistics over the global batch"),
    Flag(
        "--find-unused", "find_unused",
        "allow parts that a loss does not use (ddp, zero1; never needed)",
    ),
    Flag("--static-graph", "static_graph", "every loss uses the same parameters (ddp, zero1)"),
    Flag(
        "--bucket-views", "bucket_views",
        "gradients lie in the buckets they travel in (ddp, zero1)",
    ),
    Flag(
        "--compress", "compress", "let gradients travel in fewer bits (ddp, zero1)",
        metavar="bf16|fp16", read=_read_compress, values=lambda: ("bf16", "fp16"),
    ),
    Flag(
        "--fsdp-units", "fsdp_units",
        "classes of modules to shard one by one (fsdp, zero2; default: found)",
        metavar="CLASSES", read=_read_classes, several=True,
    ),
    Flag("--cpu-offload", "cpu_offload", "keep shards in the memory of the host (fsdp, zero2)"),
    Flag(
        "--deepspeed-config", "deepspeed_config",
        "a DeepSpeed configuration of your own (deepspeed_...)",
        metavar="FILE", read=_read_path,
    ),
)  # fmt: skip
"""Every flag of ``%%mgpu``, in the order in which help shows them."""


@dataclass(frozen=True)
class FlagTable:
    """The flags of one command: ``command`` is what its line begins with.

    ``foreign`` has flags of ``%%mgpu`` that this command has not, and why.
    """

    command: str
    flags: tuple[Flag, ...]
    foreign: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def spellings(self) -> dict[str, Flag]:
        """The flag that each spelling, long or short, stands for."""
        return {text: flag for flag in self.flags for text in (flag.name, flag.short) if text}

    @cached_property
    def readers(self) -> dict[str, Callable[[object], object]]:
        """The check of each field."""
        return {flag.field: flag.read for flag in self.flags}

    def help_text(self) -> str:
        """Return one line for each flag."""
        width = max(len(flag.usage) for flag in self.flags)
        return "\n".join(f"  {flag.usage:<{width}}  {flag.help}" for flag in self.flags)


RUN = FlagTable("%%mgpu", FLAGS)
"""What ``%%mgpu`` itself takes."""
