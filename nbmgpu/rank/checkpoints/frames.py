"""The frames of the user's code, from the cell to where it runs, and their variables."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any


@dataclass(frozen=True)
class UserFrame:
    """A frame of the cell or of a function of the notebook.

    Attributes:
        frame: the frame.
        prefix: what the names of its variables begin with in a checkpoint; empty for the cell.
    """

    frame: FrameType
    prefix: str

    @property
    def function(self) -> str:
        """Name of the function; empty for the cell."""
        return self.frame.f_code.co_name if self.prefix else ""

    def variables(self, is_own: Callable[[str], bool]) -> dict[str, Any]:
        """Return the variables by their name in a checkpoint.

        Args:
            is_own: whether a name in the cell's namespace is the shell's own.
        """
        names = self.frame.f_locals
        if self.prefix:
            return {f"{self.prefix}{name}": value for name, value in names.items()}
        return {name: value for name, value in names.items() if not is_own(name)}

    def assign(self, values: Mapping[str, Any]) -> None:
        """Assign variables by their name in a checkpoint; others are ignored."""
        own = {
            name.removeprefix(self.prefix): value
            for name, value in values.items()
            if (name.startswith(self.prefix) if self.prefix else ":" not in name)
        }
        variables = self.frame.f_locals
        variables.update(own)
        if self.prefix and sys.version_info < (3, 13):  # there f_locals writes through (PEP 667)
            write = ctypes.pythonapi.PyFrame_LocalsToFast
            write(ctypes.py_object(self.frame), ctypes.c_int(0))


WRAPPERS = {"torch.utils._contextlib", "contextlib", "functools"}
"""Modules of functions that call another one once, such as that of ``@torch.no_grad()``."""


def unfollowed_caller(
    frame: FrameType | None, namespace: dict[str, Any], is_followed: Callable[[CodeType], bool]
) -> str:
    """Return the function that calls ``frame`` and may do so in a loop that is not followed.

    Args:
        frame: of the user's code.
        namespace: the globals of the user's code.
        is_followed: whether all loops in the code of a function are.

    Returns:
        A qualified name, or the empty text.
    """
    while frame is not None and frame.f_locals is not namespace:
        code, module = frame.f_code, str(frame.f_globals.get("__name__"))
        is_known = frame.f_globals is namespace and is_followed(code)
        if not is_known and module not in WRAPPERS:
            name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11
            return name if frame.f_globals is namespace else f"{module}.{name}"
        frame = frame.f_back
    return ""


def user_frames(frame: FrameType | None, namespace: dict[str, Any]) -> list[UserFrame]:
    """Return the frames of the user's code among ``frame`` and its callers, the cell first."""
    found: list[FrameType] = []
    while frame is not None:
        if frame.f_globals is namespace:
            found.append(frame)
            if frame.f_locals is namespace:  # the cell itself
                break
        frame = frame.f_back
    return [
        UserFrame(each, f"{depth}:{each.f_code.co_name}:" if depth else "")
        for depth, each in enumerate(reversed(found))
    ]
