"""Stand-ins for what a result needs and this process cannot import.

A cell may extend ``sys.path``, or a module may have been edited since the notebook imported it.
Then a part of an object is of a class that only ranks have.  All else shall come home; the part
becomes an object that says what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .codec import Unpacker


class Absent:
    """Takes whatever a pickle does to an object; whoever uses it is told why it is not one."""

    reason = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Absent:
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
        """Say what is missing."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(self.reason)

    def __repr__(self) -> str:
        """Show what is missing."""
        return f"<{self.reason}>"


def is_absent(value: Any) -> bool:
    """Tell whether ``value`` is a stand-in, or the class of one."""
    return issubclass(value if isinstance(value, type) else type(value), Absent)


class TolerantUnpacker(Unpacker):
    """Loads stand-ins, which it keeps in ``absent``, where a class or function is missing."""

    def __init__(self, stream: memoryview, buffers: Iterable[memoryview]) -> None:
        """Read objects from ``stream`` one after another."""
        super().__init__(stream, buffers)
        self.absent: dict[tuple[str, str], type[Absent]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Find a class or function, or its stand-in."""
        try:
            return super().find_class(module, name)
        except Exception as error:  # whatever a module raises when it is imported here
            known = self.absent.get((module, name))
            return known or self.absent.setdefault((module, name), _stand_in(module, name, error))


def _stand_in(module: str, name: str, error: Exception) -> type[Absent]:
    """Return a class for ``name`` of ``module``, which ``error`` keeps from being imported."""
    reason = f"{module}.{name} cannot be imported in the notebook: {type(error).__name__}: {error}"
    return type(name.rpartition(".")[2], (Absent,), {"reason": reason, "__module__": module})
