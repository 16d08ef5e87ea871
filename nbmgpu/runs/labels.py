"""The labels of a run: its name, tags and note, which can be changed at any time."""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from nbmgpu.errors import OptionError, format_message

from .field_types import has_declared_types
from .folder import write_atomically
from .record import RunRecord

LABELS_FILE = "labels.json"

CONTROL = {"Cc", "Cs", "Zl", "Zp"}
"""Categories of characters that are not shown, or end a line."""

NAME_LENGTH, TAG_LENGTH, NOTE_LENGTH, MAX_TAGS = 80, 40, 10_000, 20
"""Maximum characters of a name, of a tag and of a note, and maximum number of tags."""


@dataclass(frozen=True)
class RunLabels:
    """What people call a run.

    Attributes:
        name: one line, shown in place of the cell's first line.
        tags: words to find runs by, each once.
        note: text of several lines.
    """

    name: str = ""
    tags: list[str] = field(default_factory=list)
    note: str = ""

    @classmethod
    def checked(cls, name: str = "", tags: Iterable[str] = (), note: str = "") -> RunLabels:
        """Return labels without surrounding spaces, empty tags and repeated tags.

        ``tags`` may be one string, separated by commas.

        Raises:
            OptionError: one is too long, or has characters that cannot be shown.
        """
        name, note = name.strip(), note.strip()
        if isinstance(tags, str):  # as --tag is written
            tags = tags.split(",")
        words = list(dict.fromkeys(filter(None, (tag.strip() for tag in tags))))
        if problem := name_problem(name):
            raise OptionError(format_message(problem, instead=as_line(name)[:NAME_LENGTH]))
        for tag in words:
            if problem := tag_problem(tag):
                raise OptionError(format_message(problem, instead=as_tag(tag)))
        if len(words) > MAX_TAGS:
            raise OptionError(format_message(f"{len(words)} tags are more than {MAX_TAGS}"))
        if len(note) > NOTE_LENGTH:
            raise OptionError(format_message(f"A note has at most {NOTE_LENGTH:,} characters"))
        return cls(name, words, note)

    @classmethod
    def of_record(cls, record: RunRecord) -> RunLabels:
        """Return the name and the tags that a run was launched with."""
        values = record.options.values
        return cls(str(values.get("name") or ""), [str(tag) for tag in values.get("tag") or ()])


def read_labels(folder: Path) -> RunLabels | None:
    """Return the labels that were written into a run folder; None for those of its launch."""
    try:
        labels = RunLabels(**json.loads((folder / LABELS_FILE).read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return labels if has_declared_types(labels) else None


def write_labels(folder: Path, labels: RunLabels) -> None:
    """Write the labels into a run folder."""
    write_atomically(folder / LABELS_FILE, json.dumps(dataclasses.asdict(labels)))


def name_problem(name: str) -> str:
    """Return what is wrong with a name, as a sentence, or an empty string."""
    if len(name) > NAME_LENGTH:
        return f"A name has at most {NAME_LENGTH} characters, and this one has {len(name)}"
    return "" if as_line(name) == name else "A name is one line"


def tag_problem(tag: str) -> str:
    """Return what is wrong with a tag, as a sentence, or an empty string."""
    if len(tag) > TAG_LENGTH:
        return f"A tag has at most {TAG_LENGTH} characters, and {tag[:20]!r}... has {len(tag)}"
    return "" if as_tag(tag) == tag else f"{tag!r} is not a tag: it is one word, without commas"


def as_tag(text: str) -> str:
    """Return the tag closest to ``text``."""
    return "-".join(as_line(text).replace(",", " ").split())[:TAG_LENGTH]


def as_line(text: str) -> str:
    """Return ``text`` on one line, without characters that cannot be shown."""
    return "".join(" " if unicodedata.category(c) in CONTROL else c for c in text)
