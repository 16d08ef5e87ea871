"""The options that label a run: its name and its tags."""

from __future__ import annotations

from dataclasses import dataclass

from nbmgpu.runs.labels import MAX_TAGS, NAME_LENGTH, as_line, as_tag, name_problem, tag_problem

from .values import InvalidValueError, Problem, list_of


@dataclass(frozen=True)
class LabelOptions:
    """The options that label a run.

    Attributes:
        name: what lists and charts call it; empty for the first line of its cell.
        tag: words to find it by.
    """

    name: str = ""
    tag: tuple[str, ...] = ()


def validate_name(value: object) -> str:
    """Return the name of a run."""
    name = "" if value is None else str(value).strip()
    if problem := name_problem(name):
        raise InvalidValueError(Problem(problem), as_line(name)[:NAME_LENGTH])
    return name


def validate_tag(value: object) -> tuple[str, ...]:
    """Return the tags of a run."""
    words = () if value is None else list_of(value)
    tags = dict.fromkeys(str(word) for word in words if word != "")
    for tag in tags:
        if problem := tag_problem(tag):
            raise InvalidValueError(Problem(problem), tuple(map(as_tag, tags)))
    if len(tags) > MAX_TAGS:
        problem = f"{len(tags)} tags are more than {MAX_TAGS}"
        raise InvalidValueError(Problem(problem), tuple(tags)[:MAX_TAGS])
    return tuple(tags)
