"""Placeholders for parts of a result that the notebook's process cannot import or construct.

A cell may extend ``sys.path``, or a module may have been edited since the notebook imported it.
Then a part of an object has a class that only ranks have, or its constructor needs something that
only they have.  Everything else is restored; the part becomes an object that reports what is
missing.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from cloudpickle.cloudpickle import subimport

from .pickler import BundleUnpickler


class Placeholder:
    """Accepts everything that unpickling does to an object, and raises when it is used."""

    reason = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Placeholder:
        """Accept the arguments of any constructor."""
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Ignore the arguments."""

    def __setstate__(self, state: Any) -> None:
        """Ignore the state."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignore an item."""

    def extend(self, items: Any) -> None:
        """Ignore items."""

    append = extend

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise ImportError with the reason."""
        raise ImportError(self.reason)

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError with the reason."""
        raise AttributeError(name if name.startswith("__") else self.reason)

    def __repr__(self) -> str:
        """Show the reason."""
        return f"<{self.reason}>"


def is_placeholder(value: Any) -> bool:
    """Return whether ``value`` is a placeholder, or the class of one."""
    return issubclass(value if isinstance(value, type) else type(value), Placeholder)


class TolerantUnpickler(BundleUnpickler):
    """Loads placeholders where a class, function or module cannot be imported.

    Their classes are in ``placeholders``, by module and name.
    """

    def __init__(self, stream: memoryview, buffers: Iterable[memoryview]) -> None:
        """Read objects from ``stream`` one after another."""
        super().__init__(stream, buffers)
        self.placeholders: dict[str, type[Placeholder]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function, or its placeholder."""
        try:
            found = super().find_class(module, name)
        except Exception as error:  # importing a module can raise anything
            return self.placeholder(f"{module}.{name}", error)
        return self.tolerant(found)

    def tolerant(self, found: Any) -> Any:
        """Return ``found``; a tolerant version if it is cloudpickle's ``subimport``."""
        # Not a bound method: the reference cycle would keep the unpickler and its memo alive until
        # the next garbage collection.
        return functools.partial(_module, self.placeholders) if found is subimport else found

    def placeholder(self, path: str, error: Exception, what: str = "imported") -> type[Placeholder]:
        """Return a class for what is at ``path``, which cannot be ``what`` because of ``error``."""
        return _placeholder(self.placeholders, path, error, what)


def _module(placeholders: dict[str, type[Placeholder]], name: str) -> Any:
    """Import a module, or create its placeholder."""
    try:
        return subimport(name)
    except Exception as error:
        return _placeholder(placeholders, name, error, "imported")()


def _placeholder(
    placeholders: dict[str, type[Placeholder]], path: str, error: Exception, what: str
) -> type[Placeholder]:
    if path not in placeholders:
        module, _, name = path.rpartition(".")
        why = f"{type(error).__name__}: {error}"
        reason = f"{path} cannot be {what} in the notebook: {why}"
        placeholders[path] = type(name, (Placeholder,), {"reason": reason, "__module__": module})
    return placeholders[path]


PythonUnpickler: Any = pickle._Unpickler
"""The pure Python implementation, whose opcodes can be overridden; it has no type stubs."""


class FallbackUnpickler(PythonUnpickler):  # type: ignore[misc]
    """Reads a stream with placeholders for objects that cannot be constructed.

    It is implemented in Python and about a hundred times slower.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(PythonUnpickler.dispatch)

    def __init__(
        self, stream: memoryview, buffers: Iterable[memoryview], tolerant: TolerantUnpickler
    ) -> None:
        """Read ``stream`` from its start; ``tolerant`` finds classes and keeps the placeholders."""
        super().__init__(io.BytesIO(stream), buffers=buffers)
        self._tolerant = tolerant

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function, or its placeholder."""
        return self._tolerant.find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        """Return one of the notebook's own objects."""
        return self._tolerant.persistent_load(pid)

    def _construct(self, what: Any, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except Exception as error:
            return self._placeholder(what, error)

    def _placeholder(self, what: Any, error: Exception) -> Any:
        if isinstance(what, type) and issubclass(what, Placeholder):
            return what()  # its class is a placeholder already
        path = f"{getattr(what, '__module__', '')}.{getattr(what, '__qualname__', what)}"
        return self._tolerant.placeholder(path, error, "made")()

    def load_reduce(self) -> None:
        """Call a function, usually a constructor."""
        args, func = self.stack.pop(), self.stack[-1]
        self.stack[-1] = self._construct(func, lambda: func(*args))

    def load_newobj(self) -> None:
        """Create an object without calling its constructor."""
        args, kind = self.stack.pop(), self.stack.pop()
        self.append(self._construct(kind, lambda: kind.__new__(kind, *args)))

    def load_newobj_ex(self) -> None:
        """Create an object without calling its constructor, with keyword arguments."""
        kwargs, args, kind = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.append(self._construct(kind, lambda: kind.__new__(kind, *args, **kwargs)))

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex


def _tolerant_opcode(opcode: bytes) -> Callable[[FallbackUnpickler], None]:
    """Return a version of an opcode that sets state or items and tolerates failures.

    All of these opcodes first pop their arguments from the stack, and leave the object on it.
    """
    copy_in_threads = PythonUnpickler.dispatch[opcode[0]]

    def load(unpickler: FallbackUnpickler) -> None:
        try:
            copy_in_threads(unpickler)
        except Exception as error:
            unpickler.stack[-1] = unpickler._placeholder(type(unpickler.stack[-1]), error)

    return load


STATE_OPCODES = (
    pickle.BUILD, pickle.SETITEM, pickle.SETITEMS, pickle.APPEND, pickle.APPENDS, pickle.ADDITEMS,
)  # fmt: skip

FallbackUnpickler.dispatch.update((opcode[0], _tolerant_opcode(opcode)) for opcode in STATE_OPCODES)
