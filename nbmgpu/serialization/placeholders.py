"""Stand-ins for what a result needs and this process cannot import, or cannot make.

A cell may extend ``sys.path``, or a module may have been edited since the notebook imported it.
Then a part of an object is of a class that only ranks have, or its constructor needs what only
they have.  All else shall come home; the part becomes an object that says what is missing.
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
    """Takes whatever a pickle does to an object; whoever uses it is told why it is not one."""

    reason = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Placeholder:
        """Take the arguments of any constructor."""
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Need none of them."""

    def __setstate__(self, state: Any) -> None:
        """Forget the state."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Forget an item."""

    def extend(self, items: Any) -> None:
        """Forget several."""

    append = extend

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Say what is missing."""
        raise ImportError(self.reason)

    def __getattr__(self, name: str) -> Any:
        """Say what is missing, to who asks whether there is such an attribute, too."""
        raise AttributeError(name if name.startswith("__") else self.reason)

    def __repr__(self) -> str:
        """Show what is missing."""
        return f"<{self.reason}>"


def is_placeholder(value: Any) -> bool:
    """Tell whether ``value`` is a stand-in, or the class of one."""
    return issubclass(value if isinstance(value, type) else type(value), Placeholder)


class TolerantUnpickler(BundleUnpickler):
    """Loads stand-ins, which it keeps in ``placeholders``, where a class, function or module is missing.

    A class is known by its module and its name there, a module by its name.
    """

    def __init__(self, stream: memoryview, buffers: Iterable[memoryview]) -> None:
        """Read objects from ``stream`` one after another."""
        super().__init__(stream, buffers)
        self.placeholders: dict[str, type[Placeholder]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Find a class or function, or its stand-in."""
        try:
            found = super().find_class(module, name)
        except Exception as error:  # whatever a module raises when it is imported here
            return self.placeholder(f"{module}.{name}", error)
        return self.tolerant(found)

    def tolerant(self, found: Any) -> Any:
        """Return what takes the place of what imports a module; all else is as it was found."""
        # No method of this object, which remembers all that it has found, and so would keep itself
        # and what was sent until the collector comes by.
        return functools.partial(_module, self.placeholders) if found is subimport else found

    def placeholder(self, path: str, error: Exception, what: str = "imported") -> type[Placeholder]:
        """Return a class for what is at ``path``, which ``error`` keeps from being ``what``."""
        return _placeholder(self.placeholders, path, error, what)


def _module(placeholders: dict[str, type[Placeholder]], name: str) -> Any:
    """Import a module, or make its stand-in."""
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
"""The one that lets itself be changed; its types are not known."""


class FallbackUnpickler(PythonUnpickler):  # type: ignore[misc]
    """Reads what another unpickler has failed to read: objects that cannot be made are stand-ins.

    Written in Python, and so a hundred times slower.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(PythonUnpickler.dispatch)

    def __init__(
        self, stream: memoryview, buffers: Iterable[memoryview], tolerant: TolerantUnpickler
    ) -> None:
        """Read ``stream`` from its beginning; ``tolerant`` finds classes, and keeps stand-ins."""
        super().__init__(io.BytesIO(stream), buffers=buffers)
        self._tolerant = tolerant

    def find_class(self, module: str, name: str) -> Any:
        """Find a class or function, or its stand-in."""
        return self._tolerant.find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        """Find one of the notebook's own objects."""
        return self._tolerant.persistent_load(pid)

    def _make_large_pages(self, what: Any, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except Exception as error:
            return self._placeholder(what, error)

    def _placeholder(self, what: Any, error: Exception) -> Any:
        if isinstance(what, type) and issubclass(what, Placeholder):
            return what()  # of one that is a stand-in already
        path = f"{getattr(what, '__module__', '')}.{getattr(what, '__qualname__', what)}"
        return self._tolerant.placeholder(path, error, "made")()

    def load_reduce(self) -> None:
        """Call a function, a constructor as a rule."""
        args, func = self.stack.pop(), self.stack[-1]
        self.stack[-1] = self._make_large_pages(func, lambda: func(*args))

    def load_newobj(self) -> None:
        """Make an object without its constructor."""
        args, kind = self.stack.pop(), self.stack.pop()
        self.append(self._make_large_pages(kind, lambda: kind.__new__(kind, *args)))

    def load_newobj_ex(self) -> None:
        """Make an object without its constructor, by keywords."""
        kwargs, args, kind = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.append(self._make_large_pages(kind, lambda: kind.__new__(kind, *args, **kwargs)))

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex


def _tolerant_opcode(opcode: bytes) -> Callable[[FallbackUnpickler], None]:
    """Return how to give the object on the stack its state, or items: it may need what comes later.

    All of these take what they give from the stack first, and leave the object there.
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
