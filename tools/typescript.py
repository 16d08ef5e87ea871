"""Translates dataclasses, named ``Literal``s and ``IntEnum``s, with their docs, to TypeScript.

The layout is that of prettier.
"""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import enum
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Union

WIDTH = 90

PLAIN = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
    object: "unknown",
    Any: "unknown",
}
LISTS = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable)
MAPS = (dict, collections.abc.Mapping)


class UntranslatableError(Exception):
    """A type that has no translation."""


@dataclass(frozen=True)
class Named:
    """A type to declare: a class, or the value of ``name = Literal[...]``, with its docs."""

    module: str
    name: str
    what: Any
    doc: str

    @classmethod
    def of(cls, it: type) -> Named:
        """Return the named type of a class."""
        return cls(it.__module__, it.__name__, it, inspect.cleandoc(it.__doc__ or ""))


@dataclass(frozen=True)
class Declaration:
    """The TypeScript declaration of a type, and the types that it uses."""

    text: str
    used_types: tuple[Named, ...]


def named_literals(modules: Iterable[types.ModuleType]) -> dict[str, Named]:
    """Return every ``name = Literal[...]`` of ``modules``, by the ``repr`` of its value."""
    found: dict[str, Named] = {}
    for module in modules:
        body = ast.parse(inspect.getsource(module)).body
        for statement, below in zip(body, [*body[1:], None], strict=True):
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)]):
                    value = getattr(module, name)
                    if typing.get_origin(value) is Literal:
                        named = Named(module.__name__, name, value, _text_of(below))
                        found.setdefault(repr(value), named)
    return found


def _text_of(statement: ast.stmt | None) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return inspect.cleandoc(text)
    return ""


def declare(it: Named, literals: dict[str, Named]) -> Declaration:
    """Return the declaration of ``it``; unions in ``literals`` are used by name.

    Raises:
        UntranslatableError: the type of a field has no translation.
    """
    translator = Translator(literals)
    if not isinstance(it.what, type):
        text = _comment(it.doc) + _union(it.name, map(constant, typing.get_args(it.what)))
    elif issubclass(it.what, enum.IntEnum):
        members = ",\n".join(f"  {member.name}: {member.value}" for member in it.what)
        text = f"{_comment(it.doc)}export const {it.name} = {{\n{members}\n}} as const;"
    else:
        text = _interface(it, translator)
    return Declaration(text, tuple(translator.used.values()))


class Translator:
    """Translates types to TypeScript, and records the named types that they use."""

    def __init__(self, literals: dict[str, Named]) -> None:
        """Use the names of ``literals``."""
        self._literals = literals
        self.used: dict[tuple[str, str], Named] = {}

    def name(self, it: Named) -> str:
        """Return the name of ``it``, and record that it is used."""
        self.used[it.module, it.name] = it
        return it.name

    def type(self, hint: Any) -> str:
        """Return ``hint`` in TypeScript."""
        if hint in PLAIN:
            return PLAIN[hint]
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Literal:
            named = self._literals.get(repr(hint))
            return self.name(named) if named else " | ".join(map(constant, arguments))
        if origin in (Union, types.UnionType):
            return " | ".join(dict.fromkeys(map(self.type, arguments)))
        if origin is tuple and arguments[-1] is not ...:
            return f"[{', '.join(map(self.type, arguments))}]"
        if origin in LISTS:
            item = self.type(arguments[0])
            return f"({item})[]" if " | " in item else f"{item}[]"
        if origin in MAPS:
            return f"Record<string, {self.type(arguments[1])}>"
        if isinstance(hint, type) and (
            dataclasses.is_dataclass(hint) or issubclass(hint, enum.IntEnum)
        ):
            return self.name(Named.of(hint))
        raise UntranslatableError(
            f"{hint!r} has no translation to TypeScript yet; see tools/typescript.py"
        )


def constant(value: object) -> str:
    """Return a constant in TypeScript."""
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    constants = {True: "true", False: "false", None: "null"}
    return constants[value] if isinstance(value, bool | None) else repr(value)


def _interface(it: Named, translator: Translator) -> str:
    about, of_fields = _sections(it.doc)
    bases = [base for base in it.what.__bases__ if dataclasses.is_dataclass(base)]
    names = ", ".join(translator.name(Named.of(base)) for base in bases)
    lines = [f"export interface {it.name} {f'extends {names} ' if names else ''}{{"]
    for name, type_ in _own_fields(it.what):
        lines.append(_comment(of_fields.get(name, ""), "  ") + _field(name, translator.type(type_)))
    return _comment(about) + "\n".join([*lines, "}"])


def _own_fields(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the fields that ``cls`` adds, including the tags of discriminated unions."""
    hints = typing.get_type_hints(cls)
    for name in inspect.get_annotations(cls):
        if name.startswith("_"):
            continue
        if typing.get_origin(hints[name]) is not ClassVar:
            yield name, hints[name]
        elif isinstance(tag := vars(cls).get(name), str):
            yield name, Literal[tag]  # type: ignore[valid-type]
        elif tag is None:  # each subclass has its own
            yield name, typing.get_args(hints[name])[0]


def _field(name: str, type_: str) -> str:
    line = f"  {name}: {type_};"
    if len(line) <= WIDTH or " | " not in type_ or "[" in type_:
        return line
    return f"  {name}:\n" + "\n".join(f"    | {choice}" for choice in type_.split(" | ")) + ";"


def _union(name: str, choices: Iterable[str]) -> str:
    choices = list(choices)
    line = f"export type {name} = {' | '.join(choices)};"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"export type {name} =", *(f"  | {choice}" for choice in choices)]) + ";"


def _sections(doc: str) -> tuple[str, dict[str, str]]:
    """Return a docstring without its section ``Attributes:``, and that section's text by field."""
    about, _, section = doc.partition("\nAttributes:\n")
    of_fields: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", textwrap.dedent(section).strip("\n")):
        names, _, text = entry.partition(":")
        of_fields |= dict.fromkeys(map(str.strip, names.split(",")), " ".join(text.split()))
    return about.strip(), of_fields


def _comment(text: str, indent: str = "") -> str:
    """Return ``text`` as TSDoc, or nothing."""
    if not text:
        return ""
    text = text.replace("``", "`").replace("*/", "*\\/").replace("@", "\\@")
    width = WIDTH - len(indent) - len(" * ")
    paragraphs = [textwrap.wrap(" ".join(p.split()), width) for p in re.split(r"\n\s*\n", text)]
    lines = [line for paragraph in paragraphs for line in ["", *paragraph]][1:]
    if len(lines) == 1 and len(indent) + len(lines[0]) + len("/**  */") <= WIDTH:
        return f"{indent}/** {lines[0]} */\n"
    body = "".join(f"{indent} * {line}".rstrip() + "\n" for line in lines)
    return f"{indent}/**\n{body}{indent} */\n"
