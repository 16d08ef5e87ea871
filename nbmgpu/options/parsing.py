"""Parses magic lines and keyword arguments against a table of flags.

Parsing does not stop at the first problem: an invalid value is replaced by a suggestion, so that
an error lists everything that is wrong and ends with a line that works.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from nbmgpu.errors import OptionError, closest_match, format_message
from nbmgpu.strategies import canonical
from nbmgpu.strategies.mesh_sizes import DIMENSIONS, dimension

from .flag_table import Flag, FlagTable
from .values import InvalidValueError, Problem

TOGETHER = "The sizes of the device mesh are given together: --mesh dp=2,tp=2"


def reject_unknown(keywords: Mapping[str, object], table: FlagTable) -> None:
    """Reject keywords that are not fields of ``table``.

    Raises:
        OptionError: a keyword is unknown; the message names the closest one.
    """
    for name, value in keywords.items():
        if name not in table.validators:
            near = closest_match(name, table.validators)
            known = f"Options: {', '.join(table.validators)}"
            instead = f"{near}={value!r}" if near else ""
            raise OptionError(format_message(f"There is no option {name!r}", known, instead))


def format_value(value: object) -> str:
    """Format a value as it is typed after a flag."""
    if isinstance(value, tuple):
        text = ",".join(map(str, value))
        return text + "," if value and value[1:] == () and isinstance(value[0], int) else text
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def format_flags(
    values: Mapping[str, Any], flags: Iterable[Flag], defaults: Mapping[str, Any]
) -> list[str]:
    """Return the words of a line that sets those ``values`` that differ from ``defaults``."""
    words = []
    for flag in flags:
        value = values[flag.field]
        if flag.metavar and value not in (None, (), defaults[flag.field]):
            words += [flag.name, shlex.quote(format_value(value))]
        elif not flag.metavar and value == flag.constant:
            words.append(flag.name)
    return words


REPEATABLE = ("tag", "pull")
"""Fields whose flag may be given several times, as in ``--tag a --tag b``."""


def format_problems(problems: Iterable[Problem], instead: str) -> str:
    """Return one message of all problems and what to type instead."""
    texts = [format_message(each.what, each.allowed) for each in dict.fromkeys(problems)]
    return format_message("\n".join(texts), instead=instead)


def validate(
    given: Mapping[str, object], table: FlagTable
) -> tuple[dict[str, Any], dict[str, Problem]]:
    """Validate each field; replace an invalid value by its suggestion and return the problem."""
    values: dict[str, Any] = {}
    problems: dict[str, Problem] = {}
    others: dict[str, object] = {}
    for name, value in given.items():
        try:
            values[name] = table.validators[name](value)
        except InvalidValueError as error:
            values[name] = error.suggestion
            others |= error.other_options
            problems |= dict.fromkeys([name, *error.other_options], error.problem)
    values |= others
    return values, problems


def parse_line(
    line: str, table: FlagTable, defaults: Mapping[str, Any]
) -> tuple[dict[str, object], list[Problem]]:
    """Return the text, or constant, that a line gives to each field, and the line's problems.

    An unknown flag is replaced by the closest one, so that an error can show a line that works.
    """
    given: dict[str, object] = {}
    sources: dict[str, Flag] = {}
    problems = []
    try:
        queue = deque(shlex.split(line, comments=True))
    except ValueError:
        problems.append(Problem("A quote is not closed"))
        queue = deque(re.sub("[\"'\\\\]", " ", line).split())
    while queue:
        word, equals, text = queue.popleft().partition("=")
        if attached := re.fullmatch(r"(-[a-z])(\d[\d,]*)", word):  # -g2
            word, equals, text = attached[1], "=", attached[2]
        flag = table.by_name.get(word)
        if flag is None and (name := _dimension(word, table)):
            size = text or (queue.popleft() if queue and not _is_flag(queue[0]) else "1")
            problems.append(Problem(f"There is no flag {word}", TOGETHER))
            given["mesh"] = ",".join(filter(None, [str(given.get("mesh", "")), f"{name}={size}"]))
            sources["mesh"] = table.by_name["--mesh"]
            continue
        if flag is None:
            flag, alone = _closest_flag(word, given, table)
            problems.append(_unknown(word, flag, table))
            equals, text = ("=", word) if alone else (equals, text)
        words = [text] if text else []
        takes = flag is None or (flag.metavar and not equals)
        while takes and queue and not _is_flag(queue[0]):
            words.append(queue.popleft())
            takes = flag is None or flag.several
        if flag is None:
            continue
        if flag.field in REPEATABLE and words and sources.get(flag.field) is flag:
            given[flag.field] = ",".join([str(given[flag.field]), *words])
            continue
        if flag.field in given:
            problems.append(_repeated(sources[flag.field], flag))
            continue
        sources[flag.field] = flag
        if not flag.metavar:
            given[flag.field] = flag.constant
            if words:
                problems.append(Problem(f"{flag.name} takes no value, but was given {words[0]!r}"))
        elif words:
            given[flag.field] = ",".join(words)
        elif flag.optional_value:
            given[flag.field] = flag.constant
        else:
            usage = f"Usage: {flag.usage}: {flag.help}"
            problems.append(Problem(f"{flag.name} has no value", usage))
            given[flag.field] = defaults[flag.field] or next(iter(flag.completions()), None)
    return given, problems


def _dimension(word: str, table: FlagTable) -> str:
    """Return the dimension of the mesh whose size ``word`` gives in another tool, or nothing.

    Such as ``--tensor-parallel-size``, or accelerate's field ``tp_size``.
    """
    name = dimension(word.lstrip("-").replace("-", "_"))
    is_size = word.endswith("size") and "--mesh" in table.by_name
    return name if is_size and name in DIMENSIONS else ""


def _is_flag(word: str) -> bool:
    """Return whether a word is a flag, known or not; ``-1`` is a value."""
    return re.match(r"--?[A-Za-z]", word) is not None


def _closest_flag(
    word: str, given: Mapping[str, object], table: FlagTable
) -> tuple[Flag | None, bool]:
    """Return the flag most likely meant, and whether ``word`` is its value, not its name."""
    if re.fullmatch(r"[\d,]+|all", word):
        return _unless_given(table.by_name.get("--gpus"), given), True
    if canonical(word):
        return _unless_given(table.by_name.get("-s"), given), True
    if word in ("--help", "-h", "help", "?") or word in table.unsupported:
        return None, False
    near = closest_match("--" + word.lstrip("-").replace("_", "-").lower(), table.by_name)
    return (table.by_name[near] if near else None), False


def _unless_given(flag: Flag | None, given: Mapping[str, object]) -> Flag | None:
    return None if flag is None or flag.field in given else flag


def _unknown(word: str, flag: Flag | None, table: FlagTable) -> Problem:
    """Return the problem of an unknown flag, with the closest one, or all."""
    what = f"There is no flag {word}" if word.startswith("-") else f"{word!r} is not a flag"
    if word in table.unsupported:
        return Problem(f"{table.command} does not accept {word}", table.unsupported[word])
    if flag is None:
        return Problem(what, f"Flags:\n{table.help_text()}")
    return Problem(what, f"The closest is {flag.name}: {flag.help}")


def _repeated(first: Flag, second: Flag) -> Problem:
    """Return the problem of two flags that set the same field."""
    if first is second:
        return Problem(f"{first.name} is given twice")
    reason = f"{first.name}: {first.help}; {second.name}: {second.help}"
    return Problem(f"{first.name} and {second.name} contradict each other", reason)
