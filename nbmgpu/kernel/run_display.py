"""The interface of displays of a running run: a widget, text, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from nbmgpu.runs.run import Run

from .notebook_context import NotebookContext


class RunDisplay(Protocol):
    """Shows one run where it was called from."""

    def start(self) -> None:
        """Show the initial state."""
        ...

    def update(self) -> None:
        """Show new events and output."""
        ...

    def discard(self) -> None:
        """Remove what is shown: the cell starts again.  ``finish`` then shows nothing."""
        ...

    def finish(self) -> None:
        """Show the rest, and a summary that stays in the notebook."""
        ...


DisplayFactory: TypeAlias = Callable[[Run, NotebookContext], RunDisplay]
"""Makes the display of a run for the shell that it is shown in."""
