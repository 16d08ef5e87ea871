"""``%mgpu engine``: lists, adds and removes engine profiles."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

from nbmgpu.engines.registry import get_engine
from nbmgpu.errors import OptionError, closest_match, format_message
from nbmgpu.options.engine_options import EngineOptions
from nbmgpu.options.engine_profiles import (
    FIELDS,
    NAME,
    profiles_path,
    read_profiles,
    validate_engine,
    write_profiles,
)
from nbmgpu.options.flag_table import FlagTable
from nbmgpu.options.flags import FLAGS
from nbmgpu.options.parsing import format_flags, format_problems, parse_line, validate
from nbmgpu.options.run_options import DEFAULTS, RunOptions
from nbmgpu.runs.engine_plugins import engine_names

PROFILE = FlagTable("%mgpu engine add", tuple(flag for flag in FLAGS if flag.field in FIELDS))
"""The flags that a profile may have."""

EXAMPLE = "%mgpu engine add cluster --engine slurm partition=gpu,time=2:00:00 --nodes 2 --gpus 4"

PAIR = re.compile(r"[\w.][\w.-]*=.*")
"""An option of the engine's own, also without ``--engine-option``."""


def engine_text(rest: str) -> str:
    """Do what the words after ``%mgpu engine`` say; return what has come of it.

    Raises:
        OptionError: they are malformed.
    """
    try:
        word, *words = shlex.split(rest, comments=True) or [""]
    except ValueError:
        raise OptionError(format_message("A quote is not closed", instead=EXAMPLE)) from None
    if not word:
        return "\n".join(profile_lines()) or format_message(
            "There is no engine profile yet", instead=EXAMPLE
        )
    commands: dict[str, Callable[[list[str]], str]] = {"add": _add, "remove": _remove}
    if word not in commands:
        near = closest_match(word, commands)
        what, allowed = f"There is no %mgpu engine {word}", "Commands: add, remove; none: list them"
        raise OptionError(
            format_message(what, allowed, f"%mgpu engine {near}" if near else EXAMPLE)
        )
    return commands[word](words)


def profile_lines() -> list[str]:
    """Return a line for each profile: its name, and what it stands for.

    Raises:
        OptionError: their file is damaged.
    """
    profiles = read_profiles()
    width = max(map(len, profiles), default=0)
    return [f"{name:<{width}}  {_line(values)}" for name, values in profiles.items()]


def _line(values: dict[str, Any]) -> str:
    """Return the flags of a profile."""
    known, _ = validate(values, PROFILE)
    flags = sorted(PROFILE.flags, key=lambda flag: FIELDS.index(flag.field))
    words = format_flags(DEFAULTS | known, flags[1:], DEFAULTS)
    return " ".join(["--engine", str(known["engine"]), *words])


def _add(words: list[str]) -> str:
    name = words[0] if words else ""
    if not NAME.fullmatch(name):
        what = f"A profile cannot be named {name!r}" if name else "The profile has no name"
        raise OptionError(format_message(what, "Letters, digits, _ and -", EXAMPLE))
    if name in engine_names():
        what = f"{name} is an engine, so a profile cannot have this name"
        instead = shlex.join(["%mgpu", "engine", "add", f"my-{name}", *words[1:]])
        raise OptionError(format_message(what, instead=instead))
    values = _parse(name, words[1:])
    profiles = read_profiles()
    done = "replaced" if name in profiles else "added"
    write_profiles(profiles | {name: values})
    return f"Profile {name} {done} in {profiles_path()}: {_line(values)}"


def _parse(name: str, words: list[str]) -> dict[str, Any]:
    """Return the values of a profile by field.

    Raises:
        OptionError: the message lists every problem and ends with a line that works.
    """
    own = [word.strip(",") for word in words if PAIR.fullmatch(word)]
    others = [word for word in words if not PAIR.fullmatch(word) and word != "--engine-option"]
    text = shlex.join([*others, *(["--engine-option", ",".join(own)] if own else [])])
    given, problems = parse_line(text, PROFILE, DEFAULTS)
    values, more = validate(given, PROFILE)
    instead = f"%mgpu engine add {name} {_line({'engine': 'slurm'} | values)}"
    if problems or more or not given:
        problems = [*problems, *more.values()]
        if not problems:
            raise OptionError(format_message("The profile has no options", instead=instead))
        raise OptionError(format_problems(problems, instead))
    engine = validate_engine(values.get("engine", DEFAULTS["engine"]))
    RunOptions.parse(_line({"engine": engine} | values))  # do they fit together?
    if options := EngineOptions(engine_option=values.pop("engine_option", ())).engine_values():
        get_engine(engine).check_options(options)
        values["engine_option"] = options
    return {"engine": engine} | values


def _remove(words: list[str]) -> str:
    profiles = read_profiles()
    if len(words) != 1 or words[0] not in profiles:
        what = f"There is no profile {' '.join(words)!r}" if words else "Which profile?"
        near = closest_match(" ".join(words), profiles)
        instead = f"%mgpu engine remove {near}" if near else "%mgpu engine"
        raise OptionError(
            format_message(what, f"Profiles: {', '.join(profiles) or 'none'}", instead)
        )
    del profiles[words[0]]
    write_profiles(profiles)
    return f"Profile {words[0]} removed."
