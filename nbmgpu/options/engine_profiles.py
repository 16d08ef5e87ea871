"""Engine profiles: an engine with its options, under a name that ``--engine`` takes as well.

They are tables of a TOML file in Jupyter's configuration folder, with options as in Python::

    [cluster]
    engine = "slurm"
    nodes = 2
    gpus = 4

    [cluster.engine_option]
    partition = "gpu"
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nbmgpu.errors import OptionError, closest_match, format_message
from nbmgpu.runs.engine_plugins import BUILT_IN, DEFAULT_ENGINE, engine_names
from nbmgpu.runs.folder import write_atomically

from .engine_options import option_words
from .values import InvalidValueError, Problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIELDS = ("engine", "nodes", "gpus", "cpu", "engine_option", "timeout", "detach")
"""The options that a profile may have."""

NAME = re.compile(r"\w[\w-]*")
"""A name of a profile; in TOML, others need quotes."""

Validator = Callable[[object], Any]


def profiles_path() -> Path:
    """Return the file of the profiles, which need not exist."""
    from jupyter_core.paths import jupyter_config_dir

    return Path(jupyter_config_dir()) / "nbmgpu" / "engines.toml"


def read_profiles() -> dict[str, dict[str, Any]]:
    """Return the options of each profile by its name.

    Raises:
        OptionError: the file is not what this module writes.
    """
    path = profiles_path()
    try:
        profiles = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise OptionError(f"The engine profiles in {path} cannot be read: {error}") from None
    for name, values in profiles.items():
        if not isinstance(values, dict) or not isinstance(values.get("engine"), str):
            raise OptionError(f'The profile {name} in {path} has no line engine = "slurm"')
        if unknown := values.keys() - set(FIELDS):
            what = f"The profile {name} in {path} has an unknown option: {', '.join(unknown)}"
            raise OptionError(format_message(what, f"Options: {', '.join(FIELDS)}"))
    return profiles


def write_profiles(profiles: Mapping[str, Mapping[str, Any]]) -> None:
    """Write all profiles; what else was in the file is lost.

    Raises:
        OSError: the folder cannot be written.
    """
    path = profiles_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "\n".join(_table(name, values) for name, values in profiles.items()))


def _table(name: str, values: Mapping[str, Any]) -> str:
    """Return a profile as TOML: single values, then the engine's own options as another table."""
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    lines = [f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in plain.items())]
    for key, table in tables.items():
        lines += ["", f"[{name}.{key}]", *(f"{_key(k)} = {_value(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: object) -> str:
    """Return a text, number, truth value or list as TOML, which writes them as JSON does."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def with_profile(given: Mapping[str, object]) -> dict[str, object]:
    """Replace the name of a profile by its options; those that are ``given`` as well win.

    Raises:
        OptionError: the file of the profiles is damaged.
    """
    name = given.get("engine")
    if not isinstance(name, str) or name in BUILT_IN or name in engine_names():
        return dict(given)
    profile = read_profiles().get(name)
    if profile is None:
        return dict(given)
    options = [option_words(each.get("engine_option")) for each in (profile, given)]
    merged = {**profile, **given, "engine": profile["engine"]}
    return merged | ({"engine_option": [*options[0], *options[1]]} if any(options) else {})


def with_profile_name(
    values: Mapping[str, Any], defaults: Mapping[str, Any], validators: Mapping[str, Validator]
) -> dict[str, Any]:
    """Replace options by the name of a profile that has them: ``with_profile`` in reverse.

    Args:
        values: of all options.
        defaults: the default of each option.
        validators: convert the value of an option in a profile.

    Returns:
        What takes the fewest words to type.
    """
    try:
        profiles = read_profiles()
    except OptionError:  # its file is damaged
        profiles = {}
    named = [_named(values, name, each, defaults, validators) for name, each in profiles.items()]

    def words(given: Mapping[str, Any]) -> int:
        pairs: int = len(given["engine_option"])
        return pairs + len([n for n in FIELDS if n in given and given[n] != defaults[n]])

    return min([dict(values), *filter(None, named)], key=words)


def _named(
    values: Mapping[str, Any],
    name: str,
    profile: Mapping[str, Any],
    defaults: Mapping[str, Any],
    validators: Mapping[str, Validator],
) -> dict[str, Any] | None:
    """Return what to type beside the name of a profile; None if it sets what is not wanted."""
    try:
        known = {field: value for field, value in profile.items() if field in validators}
        own = {field: validators[field](value) for field, value in known.items()}
    except InvalidValueError:
        return None
    pairs = own.pop("engine_option", ())
    keys = {pair.partition("=")[0] for pair in values["engine_option"]}
    if any(pair.partition("=")[0] not in keys for pair in pairs):
        return None
    left = [pair for pair in values["engine_option"] if pair not in pairs]
    shorter = {**values, "engine_option": tuple(left)}
    for field, value in own.items():
        if value == values[field]:
            shorter[field] = defaults[field]
        elif field == "engine" or values[field] == defaults[field]:
            return None
    return shorter | {"engine": name}


def known_engines() -> tuple[str, ...]:
    """Return the names that ``--engine`` takes: of engines, and of profiles."""
    try:
        return (*engine_names(), *read_profiles())
    except OptionError:  # its file is damaged
        return engine_names()


def validate_engine(value: object) -> str:
    """Return the name of an installed engine.

    Raises:
        InvalidValueError: there is none of that name.
        OptionError: the file of the profiles is damaged.
    """
    if value == DEFAULT_ENGINE:
        return DEFAULT_ENGINE  # without a search for entry points
    engines = engine_names()
    if isinstance(value, str) and value in engines:
        return value
    profiles = tuple(read_profiles())
    near = closest_match(str(value).lower(), (*engines, *profiles)) or DEFAULT_ENGINE
    allowed = f"Engines: {', '.join(engines)}"
    allowed += f"; profiles: {', '.join(profiles)}" if profiles else ""
    raise InvalidValueError(Problem(f"There is no engine {value!r}", allowed), near)
