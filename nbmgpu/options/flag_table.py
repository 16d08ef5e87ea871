"""A flag of a magic, and the table of the flags of one command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from . import values


def _no_completions() -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Flag:
    """One flag and the field of ``RunOptions`` that it sets.

    Attributes:
        name, short: the flag as it is typed, such as ``--gpus`` and ``-g``.
        field: the field of ``RunOptions``.
        help: one line for ``--help``.
        metavar: a placeholder for the value in help; a flag without one is a switch, which takes
            no value and sets ``constant``.
        validate: converts a value, text or not, to the field's type, or raises InvalidValueError.
        completions: returns the values that Tab offers, the most likely first.
        several: whether the flag takes every word up to the next flag.
        optional_value: whether the value may be left out, which sets ``constant``.
    """

    name: str
    field: str
    help: str
    short: str = ""
    metavar: str = ""
    validate: Callable[[object], object] = values.validate_switch
    completions: Callable[[], tuple[str, ...]] = _no_completions
    several: bool = False
    constant: object = True
    optional_value: bool = False

    @property
    def usage(self) -> str:
        """The flag as help shows it: ``--gpus, -g N|all|0,2``."""
        spelled = f"{self.name}, {self.short}" if self.short else self.name
        return f"{spelled} {self.metavar}".rstrip()


@dataclass(frozen=True)
class FlagTable:
    """The flags of one command.

    Attributes:
        command: the beginning of its line, such as ``%%mgpu compare``.
        flags: what it accepts.
        unsupported: flags of ``%%mgpu`` that it does not accept, and why.
    """

    command: str
    flags: tuple[Flag, ...]
    unsupported: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> dict[str, Flag]:
        """Flags by their long and short names."""
        return {text: flag for flag in self.flags for text in (flag.name, flag.short) if text}

    @cached_property
    def validators(self) -> dict[str, Callable[[object], object]]:
        """The validator of each field."""
        return {flag.field: flag.validate for flag in self.flags}

    def help_text(self) -> str:
        """Return one line for each flag."""
        width = max(len(flag.usage) for flag in self.flags)
        return "\n".join(f"  {flag.usage:<{width}}  {flag.help}" for flag in self.flags)
