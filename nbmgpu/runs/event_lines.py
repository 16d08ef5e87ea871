"""Events as lines of JSON.

A line may be anything: truncated by a full disk, of another version, or damaged.  What is not an
event with fields of the declared types is skipped, so that readers can rely on these types.
"""

from __future__ import annotations

import dataclasses
import json

from .events import EVENT_TYPES, Event, Metrics, ParameterShards
from .field_types import field_checks

SAME_LENGTH: dict[type[Event], tuple[str, ...]] = {
    Metrics: ("steps", "values", "weights"),
    ParameterShards: ("layers", "elements", "stored", "nbytes"),
}
"""Lists of an event that have an item each for the same thing."""


def encode(event: Event) -> str:
    """Return the event as a line of JSON, without the newline."""
    fields = {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}
    return json.dumps({"kind": event.kind, **fields}, separators=(",", ":"))


def decode(line: str | bytes) -> Event | None:
    """Return the event of a line, or None for one that this version cannot read."""
    try:
        fields = json.loads(line)
        cls = EVENT_TYPES[fields.pop("kind")]
        checks = field_checks(cls)
        event = cls(**{name: value for name, value in fields.items() if name in checks})
        for name, check in checks.items():
            if not check(getattr(event, name)):
                return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if cls not in SAME_LENGTH:
        return event
    lengths = {len(getattr(event, name)) for name in SAME_LENGTH[cls]}
    return event if len(lengths) == 1 else None
