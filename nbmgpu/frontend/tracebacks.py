"""Tracebacks without nbmgpu's own frames, which do not help to find an error in a cell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nbmgpu.errors import CellError, NbmgpuError
from nbmgpu.kernel.notebook_context import NotebookContext
from nbmgpu.runs.failure import without_traceback

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


@contextmanager
def plain_errors(shell: InteractiveShell, cell: str = "") -> Iterator[None]:
    """Show nbmgpu's errors, and syntax errors of ``cell``, without nbmgpu's frames.

    Raises:
        NbmgpuError, CellSyntaxError: in place of the original error.
    """
    try:
        yield
    except NbmgpuError as error:
        raise error if hasattr(error, "_render_traceback_") else without_traceback(error) from None
    except SyntaxError as error:
        error.filename = shell.compile.cache(cell, NotebookContext(shell).cell_number)
        # The third argument, which IPython 9 does not need.
        lines = shell.SyntaxTB.structured_traceback(type(error), error, None)
        raise CellSyntaxError(lines) from None


class CellSyntaxError(CellError):
    """A syntax error of the cell, displayed as by IPython.

    IPython cannot display a ``SyntaxError`` that was raised in a magic without the magic's frames.
    """

    def __init__(self, lines: list[str]) -> None:
        """Create an error that is displayed as the traceback ``lines``."""
        super().__init__(lines[-1].strip())
        self._lines = lines

    def _render_traceback_(self) -> list[str]:
        return self._lines


CellSyntaxError.__name__ = "SyntaxError"
