"""Functions and classes that the notebook defines, which are pickled by value."""

from __future__ import annotations

import enum
import typing
from typing import Any

from cloudpickle.cloudpickle import _class_setstate, _should_pickle_by_reference


def is_by_value(obj: Any) -> bool:
    """Return whether a class or function is pickled by value because the notebook defines it."""
    return not _should_pickle_by_reference(obj)


def reduce_class_with_slots(reduced: Any) -> Any:
    """Return ``reduced`` with the ``__slots__`` of the class, which cloudpickle omits."""
    make, (*names, body, number, extra), (attributes, slots), *rest, _ = reduced
    named_tuple = typing.NamedTuple in attributes.get("__orig_bases__", ())  # creates its own slots
    if "__slots__" in attributes and not named_tuple:
        attributes.pop("__slotnames__", None)
        body = {**body, "__slots__": attributes.pop("__slots__")}
    return make, (*names, body, number, extra), (attributes, slots), *rest, _set_new_class


def _set_new_class(kind: type, state: Any) -> None:
    """Set the attributes of a new class; a class that this process already has stays as it is."""
    attributes, _ = state
    body = attributes.keys() - {"__module__", "__doc__", "_abc_impl"}
    if issubclass(kind, enum.Enum) or not body or not body <= vars(kind).keys():
        _class_setstate(kind, state)
