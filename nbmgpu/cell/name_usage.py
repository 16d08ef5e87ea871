"""The names that code reads, binds and deletes in the namespace it runs in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .control_flow import AssignedNames

Location = tuple[int, int]
"""Line and column at which a name is read."""


class StringLiteral(NamedTuple):
    """A string in the code, with the names that are assigned where it is evaluated."""

    text: str
    assigned: AssignedNames
    location: Location


@dataclass
class NameUsage:
    """The module-level names that code uses.

    Attributes:
        reads: each name that may be read while it is not assigned, with its first location.
        required: the same without reads that may fail, as under ``except NameError``.
        attributes: the attributes that are read from each name, as in ``name.attribute``.
        bound: all names that exist at some point.
        writes: names that may still be bound at the end, in order.
        deletes: names that may be deleted, in order.
        star_imports: the modules of ``from module import *``, in order.
        strings: the string literals, which ``eval`` may execute.
        opaque: whether names may be bound that the source does not show.
        enumerates_names: whether the code may look at all names, as with ``globals()``.
    """

    reads: dict[str, Location] = field(default_factory=dict)
    required: dict[str, Location] = field(default_factory=dict)
    attributes: dict[str, set[str]] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    writes: dict[str, None] = field(default_factory=dict)
    deletes: dict[str, None] = field(default_factory=dict)
    star_imports: dict[str, None] = field(default_factory=dict)
    strings: list[StringLiteral] = field(default_factory=list)
    opaque: bool = False
    enumerates_names: bool = False

    def add_read(self, name: str, location: Location, required: bool) -> None:
        """Add a read; if ``required``, it raises NameError where the name does not exist."""
        for locations in (self.reads, self.required) if required else (self.reads,):
            locations[name] = min(location, locations.get(name, location))

    def add_binding(self, name: str, is_written: bool) -> None:
        """Add a binding; ``is_written`` tells whether it may remain at the end."""
        self.bound.add(name)
        if is_written:
            self.writes[name] = None
