"""Checks of ``--engine-option`` that engines for several machines have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nbmgpu.errors import OptionError, closest_match, format_message


def require_known_keys(
    engine: str, values: Mapping[str, str], keys: Sequence[str], usual: str
) -> None:
    """Raise an error if one of ``values`` has another key than ``keys``.

    Args:
        engine: its name, for people.
        values: of ``--engine-option``.
        keys: those that the engine has.
        usual: the key to suggest where none resembles the one that was given.

    Raises:
        OptionError: a key is unknown.
    """
    for key, value in values.items():
        if key not in keys:
            near = closest_match(key, keys)
            pair = f"{near}={value}" if near else f"{usual}=..."
            what = f"{engine}'s --engine-option has no key {key!r}"
            allowed = f"Keys: {', '.join(sorted(keys))}"
            raise OptionError(format_message(what, allowed, f"--engine-option {pair}"))


def cpus_per_rank(values: Mapping[str, str]) -> int | None:
    """Return the cores of each rank; None for the engine's default.

    Raises:
        OptionError: it is not a number.
    """
    cpus = values.get("cpus-per-rank")
    if cpus is not None and not (cpus.isdecimal() and int(cpus)):
        what = f"cpus-per-rank={cpus} is not a number of cores"
        raise OptionError(format_message(what, instead="--engine-option cpus-per-rank=4"))
    return int(cpus) if cpus else None
