"""The options of ``%mgpu advise`` and ``pick`` about nodes that this machine does not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbmgpu.errors import OptionError, format_message

from .interval import parse_bytes
from .node_traffic import parse_link

EXAMPLES = {"--link": "25", "--memory": "80GB"}
"""The options, each with a value."""


def split_node_options(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the other words of a line, and ``link`` in Gbit/s and ``memory`` as it is given.

    Raises:
        OptionError: an option has no value, or an invalid one.
    """
    others: list[str] = []
    given: dict[str, list[str]] = {}
    option = ""
    for word in words:
        name, _, value = word.partition("=")
        if name in EXAMPLES:
            option = name
            given[name] = [value] if value else []
        elif option and not word.startswith("-"):
            given[option].append(word)
        else:
            option = ""
            others.append(word)
    return others, {name.lstrip("-"): _value(name, " ".join(text)) for name, text in given.items()}


def _value(name: str, text: str) -> float | str:
    if not text:
        what = f"{name} has no value"
        raise OptionError(format_message(what, instead=f"{name} {EXAMPLES[name]}"))
    if name == "--link":
        return parse_link(text)
    parse_bytes(text)
    return text
