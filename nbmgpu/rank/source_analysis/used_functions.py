"""Finds the functions that the notebook's code may run, in modules beside the notebook too."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from .stack_frames import LIBRARIES, is_of_library

NOT_READ = {*LIBRARIES, "transformers", "builtins"}
"""Packages whose functions are not looked at: what they compute is known."""


class UsedFunctions:
    """Functions that code refers to by its names, and those that these refer to.

    The functions of a class are used where the class or an object of it is.  Of installed packages,
    only functions and modules that the user's code refers to are looked at, as they may be losses.

    Attributes:
        with_models: whether the functions of models are looked at.
        own: functions of the notebook, and of modules that are not installed.
        of_packages: functions of installed packages.
    """

    def __init__(self, with_models: bool = True) -> None:
        """Begin without functions."""
        self.with_models = with_models
        self.own: list[FunctionType] = []
        self.of_packages: list[FunctionType] = []
        self._seen: set[int] = set()
        self._waiting: list[Any] = []

    def add(self, values: Iterable[Any]) -> None:
        """Add the functions that using ``values`` may run."""
        self._waiting.extend(values)
        while self._waiting:
            value = self._waiting.pop()
            if id(value) not in self._seen:
                self._seen.add(id(value))
                self._visit(value)

    def add_named(self, codes: Iterable[CodeType], namespace: Mapping[str, Any]) -> None:
        """Add the functions that ``codes`` refer to, with the values of their global names."""
        for code in codes:
            self.add(_named_values(code, namespace))

    def _visit(self, value: Any) -> None:
        if not self.with_models and _is_model(value):
            return
        if isinstance(value, FunctionType):
            self._visit_function(value)
        elif isinstance(value, functools.partial):
            self._waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, MethodType):
            self._waiting += [value.__func__, value.__self__]
        elif isinstance(value, type):
            self._waiting += [f for kind in value.__mro__ for f in _functions_of(kind)]
        elif _is_read(type(value).__module__):
            self._waiting.append(type(value))
            attributes = getattr(value, "__dict__", None)
            if isinstance(attributes, dict) and not _is_installed(type(value).__module__):
                self._waiting += _objects_in(attributes.values())
        if isinstance(value, torch.nn.Module):
            self._waiting += {type(module) for module in value.modules()}

    def _visit_function(self, function: FunctionType) -> None:
        inner = inspect.unwrap(function)
        if inner is not function:
            self._waiting.append(inner)
        if not _is_read(function.__module__):
            return
        if _is_installed(function.__module__):
            self.of_packages.append(function)
            return
        self.own.append(function)
        self._waiting += _objects_in(_closure_values(function))
        self._waiting += _named_values(function.__code__, function.__globals__)


def nested_codes(codes: Iterable[CodeType]) -> Iterator[CodeType]:
    """Yield code objects and those nested in them."""
    for code in codes:
        yield code
        yield from nested_codes(part for part in code.co_consts if isinstance(part, CodeType))


def _is_read(module: str | None) -> bool:
    return bool(module) and str(module).partition(".")[0] not in NOT_READ


def _named_values(code: CodeType, namespace: Mapping[str, Any]) -> list[Any]:
    """Return the values that ``code`` refers to by global names, or as attributes of modules."""
    names = {name for part in nested_codes([code]) for name in part.co_names}
    values = [namespace[name] for name in names if name in namespace]
    modules = [each for each in values if isinstance(each, ModuleType) and _is_read(each.__name__)]
    for module in modules:  # the list grows by the modules of packages
        found = [vars(module)[name] for name in names if name in vars(module)]
        values += found
        modules += [each for each in found if isinstance(each, ModuleType) and each not in modules]
    return _objects_in(values)


def _objects_in(values: Iterable[Any]) -> list[Any]:
    """Return those of ``values`` that may have functions."""
    return [each for each in values if not isinstance(each, ModuleType | torch.Tensor)]


def _functions_of(kind: type) -> list[Any]:
    """Return the functions that the class ``kind`` defines itself."""
    if not _is_read(kind.__module__) or (_is_installed(kind.__module__) and not _is_model(kind)):
        return []
    members = [getattr(each, "__func__", each) for each in list(vars(kind).values())]
    members += [each.fget for each in members if isinstance(each, property)]
    return [each for each in members if isinstance(each, FunctionType)]


def _is_installed(module: str) -> bool:
    return is_of_library(getattr(sys.modules.get(module), "__file__", None) or "")


def _is_model(value: Any) -> bool:
    kind = value if isinstance(value, type) else type(value)
    return issubclass(kind, torch.nn.Module)


def _closure_values(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
