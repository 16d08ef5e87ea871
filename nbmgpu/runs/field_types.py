"""Checks that the fields of a dataclass, read from JSON, have the types that it declares."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Check = Callable[[Any], bool]


_known: dict[type, dict[str, Check]] = {}


def field_checks(cls: Any) -> dict[str, Check]:
    """Return for each field of ``cls`` a function that tells whether a value has its type.

    Integers must fit into 64 bits, as curves and offsets do.  Only lists have nan and infinity: a
    loss may be that, and a time may not.
    """
    if cls not in _known:
        hints = get_type_hints(cls)
        _known[cls] = {f.name: _check_of(hints[f.name]) for f in dataclasses.fields(cls)}
    return _known[cls]


def has_declared_types(value: Any) -> bool:
    """Return whether the fields of a dataclass have their types."""
    checks = field_checks(type(value))
    return all(check(getattr(value, name)) for name, check in checks.items())


def _check_of(hint: Any) -> Check:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin is Literal:
        return lambda value: value in arguments
    if origin in (Union, types.UnionType):
        checks = [_check_of(each) for each in arguments]
        return lambda value: any(check(value) for check in checks)
    if origin is list and dataclasses.is_dataclass(arguments[0]):
        check = _check_of(arguments[0])
        return lambda value: type(value) is list and all(map(check, value))
    if origin is list:
        return _list_check(_json_types(arguments[0]))
    if origin is dict:
        check = _check_of(arguments[1])
        return lambda value: type(value) is dict and all(map(check, value.values()))
    if dataclasses.is_dataclass(hint):
        return lambda value: type(value) is hint and has_declared_types(value)
    return _SCALARS.get(hint) or (lambda value: type(value) is hint)


def _list_check(allowed: frozenset[type]) -> Check:
    def check(value: Any) -> bool:
        if type(value) is not list:
            return False
        types = set(map(type, value))
        return types <= allowed and (int not in types or all(map(_is_small, value)))

    return check


def _json_types(hint: type) -> frozenset[type]:
    """Return the types that JSON has for a type: a float without a fraction may be an int."""
    return frozenset({int, float} if hint is float else {hint})


def _is_small(value: Any) -> bool:
    return type(value) is not int or -(2**63) <= value < 2**63


def _is_int(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_number(value: Any) -> bool:
    return math.isfinite(value) if type(value) is float else _is_int(value)


_SCALARS: dict[Any, Check] = {int: _is_int, float: _is_number}
"""Checks in one call: readers of many ranks check millions of fields."""
