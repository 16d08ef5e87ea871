"""The options of where a run takes place: the engine, its machines, and what it is told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nbmgpu.runs.engine_plugins import DEFAULT_ENGINE

from .values import InvalidValueError, Problem, count_of

DETACHED_LIMIT = 24 * 3600.0
"""Seconds after which a detached run of this machine ends where ``--timeout`` says nothing else."""

PAIRS = re.compile(r"[,\s]+(?=[\w.-]+=)")
"""What separates pairs: a value may contain commas, as in ``nodelist=a1,a2``."""


@dataclass(frozen=True)
class EngineOptions:
    """The options of the engine.

    Attributes:
        engine: name of the engine that places and starts the ranks, see ``nbmgpu.engines``.
        nodes: number of machines; ``gpus`` is then the number on each.  None for the engine's
            default, usually 1.
        engine_option: ``key=value`` each, which only the engine understands.
        detach: whether the run goes on when its kernel ends.
    """

    engine: str = DEFAULT_ENGINE
    nodes: int | None = None
    engine_option: tuple[str, ...] = ()
    detach: bool = False

    @property
    def is_detached(self) -> bool:
        """Whether it is ``detach`` that lets the run outlive its kernel, not the engine itself."""
        return self.detach and self.engine == DEFAULT_ENGINE

    def engine_values(self) -> dict[str, str]:
        """Return the values of ``engine_option`` by their keys."""
        pairs = (word.partition("=") for word in self.engine_option)
        return {key: value for key, _, value in pairs}


def recorded_engine_values(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of ``--engine-option`` by key, from all options that a record has."""
    return EngineOptions(engine_option=tuple(values["engine_option"])).engine_values()


validate_nodes = count_of("machines", "--nodes", 1)


def validate_engine_option(value: object) -> tuple[str, ...]:
    """Return pairs ``key=value``, of each key the last one."""
    words = option_words(value)
    pairs = [str(word).partition("=") for word in words if word]
    good = {key: f"{key}={text}" for key, sign, text in pairs if key and sign}
    wrong = [f"{key}{sign}{text}" for key, sign, text in pairs if not (key and sign)]
    if not wrong:
        return tuple(good.values())
    what = f"--engine-option takes key=value, not {' '.join(map(repr, wrong))}"
    raise InvalidValueError(Problem(what, "Such as partition=gpu"), tuple(good.values()))


def option_words(value: object) -> list[object]:
    """Return the pairs of a text, a sequence or a dict; they are not validated."""
    return [*(PAIRS.split(value.strip(" ,")) if isinstance(value, str) else iterate(value))]


def iterate(value: object) -> Iterable[object]:
    """Return the items of a sequence; the pairs of a dict."""
    if isinstance(value, Mapping):
        return [f"{key}={text}" for key, text in value.items()]
    return value if isinstance(value, Iterable) else [value] if value is not None else []
