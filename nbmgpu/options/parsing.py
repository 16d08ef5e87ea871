"""Lines and keywords, read by a table of flags: what they say, and what is wrong with them.

Reading never stops at the first slip: each value comes with what was most likely meant, so
that an error says everything that is wrong and ends with a line that works.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from nbmgpu.errors import OptionError, closest, compose
from nbmgpu.strategies import canonical

from .flags import Flag, FlagTable, MisreadError, Slip


def check_names(keywords: Mapping[str, object], table: FlagTable) -> None:
    """Refuse a keyword that is no field of ``table``.

    Raises:
        OptionError: it names the nearest.
    """
    for name, value in keywords.items():
        if name not in table.readers:
            near = closest(name, table.readers)
            known = f"Options: {', '.join(table.readers)}"
            instead = f"{near}={value!r}" if near else ""
            raise OptionError(compose(f"There is no option {name!r}", known, instead))


def spell(value: object) -> str:
    """Write a value as a flag takes it."""
    if isinstance(value, tuple):
        text = ",".join(map(str, value))
        return text + "," if value and value[1:] == () and isinstance(value[0], int) else text
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def written(
    values: Mapping[str, Any], flags: Iterable[Flag], defaults: Mapping[str, Any]
) -> list[str]:
    """Return the words of a line that says what of ``values`` is not default."""
    words = []
    for flag in flags:
        value = values[flag.field]
        if flag.metavar and value not in (None, (), defaults[flag.field]):
            words += [flag.name, shlex.quote(spell(value))]
        elif not flag.metavar and value == flag.constant:
            words.append(flag.name)
    return words


def explain(slips: Iterable[Slip], instead: str) -> str:
    """Compose one message of all slips and what to type."""
    return compose("\n".join(compose(s.what, s.allowed) for s in slips), instead=instead)


def read_values(
    given: Mapping[str, object], table: FlagTable
) -> tuple[dict[str, Any], dict[str, Slip]]:
    """Read each field with its flag's check; a wrong one is noted and mended."""
    values: dict[str, Any] = {}
    slips: dict[str, Slip] = {}
    for name, value in given.items():
        try:
            values[name] = table.readers[name](value)
        except MisreadError as misread:
            values[name] = misread.mend
            slips[name] = misread.slip
    return values, slips


def read_line(
    line: str, table: FlagTable, defaults: Mapping[str, Any]
) -> tuple[dict[str, object], list[Slip]]:
    """Return the text, or constant, that a line gives to each field, and what is wrong with it.

    Reading never stops at a slip: the flag most likely meant is taken instead, so
    that what is understood of the line can be shown as a line that works.
    """
    given: dict[str, object] = {}
    sources: dict[str, Flag] = {}
    slips = []
    try:
        queue = deque(shlex.split(line, comments=True))
    except ValueError:
        slips.append(Slip("A quote is not closed"))
        queue = deque(re.sub("[\"'\\\\]", " ", line).split())
    while queue:
        word, equals, text = queue.popleft().partition("=")
        if attached := re.fullmatch(r"(-[a-z])(\d[\d,]*)", word):  # -g2
            word, equals, text = attached[1], "=", attached[2]
        flag = table.spellings.get(word)
        if flag is None:
            flag, alone = _guess(word, given, table)
            slips.append(_unknown(word, flag, table))
            equals, text = ("=", word) if alone else (equals, text)
        words = [text] if text else []
        takes = flag is None or (flag.metavar and not equals)
        while takes and queue and not _is_flag(queue[0]):
            words.append(queue.popleft())
            takes = flag is None or flag.several
        if flag is None:
            continue
        if flag.field in given:
            slips.append(_repeated(sources[flag.field], flag))
            continue
        sources[flag.field] = flag
        if not flag.metavar:
            given[flag.field] = flag.constant
            if words:
                slips.append(Slip(f"{flag.name} takes no value, but has {words[0]!r}"))
        elif words:
            given[flag.field] = ",".join(words)
        else:
            slips.append(Slip(f"{flag.name} has no value", f"It is written {flag.usage}"))
            given[flag.field] = defaults[flag.field] or next(iter(flag.values()), None)
    return given, slips


def _is_flag(word: str) -> bool:
    """Tell a flag, known or not, from a value: ``-1`` is a value."""
    return re.match(r"--?[A-Za-z]", word) is not None


def _guess(word: str, given: Mapping[str, object], table: FlagTable) -> tuple[Flag | None, bool]:
    """Return the flag most likely meant, and whether the word is its value rather than its name."""
    if re.fullmatch(r"[\d,]+|all", word):
        return _unless_given(table.spellings["--gpus"], given), True
    if canonical(word):
        return _unless_given(table.spellings["-s"], given), True
    if word in ("--help", "-h", "help", "?") or word in table.foreign:
        return None, False
    near = closest("--" + word.lstrip("-").replace("_", "-").lower(), table.spellings)
    return (table.spellings[near] if near else None), False


def _unless_given(flag: Flag, given: Mapping[str, object]) -> Flag | None:
    return None if flag.field in given else flag


def _unknown(word: str, flag: Flag | None, table: FlagTable) -> Slip:
    """Say that a word is no flag, and name the nearest, or all."""
    what = f"There is no flag {word}" if word.startswith("-") else f"{word!r} is not a flag"
    if word in table.foreign:
        return Slip(f"{word} does not go with {table.command}", table.foreign[word])
    if flag is None:
        return Slip(what, f"Flags:\n{table.help_text()}")
    return Slip(what, f"The nearest is {flag.name}: {flag.help}")


def _repeated(first: Flag, second: Flag) -> Slip:
    """Say that two flags set the same field."""
    if first is second:
        return Slip(f"{first.name} is given twice")
    reason = f"{first.name} is to {first.help}, {second.name} to {second.help}"
    return Slip(f"{first.name} and {second.name} contradict each other", reason)
