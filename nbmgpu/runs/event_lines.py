"""Events as lines of JSON.

A line may be anything: truncated by a full disk, of another version, or damaged.  What is not an
event with fields of the declared types is skipped, so that readers can rely on these types.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from .event_types import EVENT_TYPES
from .events import Event, Metrics, ParameterShards
from .field_types import Check, field_checks

SAME_LENGTH: dict[type[Event], tuple[str, ...]] = {
    Metrics: ("steps", "values", "weights"),
    ParameterShards: ("layers", "elements", "stored", "nbytes"),
}
"""Lists of an event that have an item each for the same thing."""


_known: dict[type[Event], dict[str, tuple[Check, Callable[[], Any] | None]]] = {}


def encode(event: Event) -> str:
    """Return the event as a line of JSON, without the newline."""
    fields = {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}
    return json.dumps({"kind": event.kind, **fields}, separators=(",", ":"))


def decode_lines(lines: Sequence[bytes]) -> list[Event]:
    """Return the events of some lines, without those that this version cannot read."""
    found: list[Any] = []
    try:  # all at once: a call of the parser takes as long as what it does in a line
        found = json.loads(b"[%b]" % b",".join(lines))
    except (ValueError, RecursionError):
        pass
    if len(found) != len(lines):  # one of them is damaged
        found = [_parsed(line) for line in lines]
    return [event for fields in found if (event := _event(fields)) is not None]


def decode(line: str | bytes) -> Event | None:
    """Return the event of a line, or None for one that this version cannot read."""
    return _event(_parsed(line))


def _parsed(line: str | bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _event(fields: Any) -> Event | None:
    try:
        cls = EVENT_TYPES[fields.pop("kind")]
    except (KeyError, TypeError, AttributeError):
        return None
    # Each field is checked and set at once: readers of many ranks read thousands of events a
    # second, and the constructor of a frozen dataclass takes as long as the checks.
    event = cls.__new__(cls)
    values = event.__dict__
    for name, (check, default) in _fields(cls).items():
        if name in fields:
            value = fields[name]
            if not check(value):
                return None
            values[name] = value
        elif default is None:
            return None
        else:
            values[name] = default()
    if cls not in SAME_LENGTH:
        return event
    lengths = {len(values[name]) for name in SAME_LENGTH[cls]}
    return event if len(lengths) == 1 else None


def _fields(cls: type[Event]) -> dict[str, tuple[Check, Callable[[], Any] | None]]:
    """Return the check of each field, and what makes its default value if it has one."""
    if cls not in _known:
        checks = field_checks(cls)
        _known[cls] = {f.name: (checks[f.name], _default(f)) for f in dataclasses.fields(cls)}
    return _known[cls]


def _default(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    if field.default is dataclasses.MISSING:
        return None
    value = field.default
    return lambda: value
