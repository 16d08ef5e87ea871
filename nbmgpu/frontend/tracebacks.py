"""What IPython shows of an error: nbmgpu's own frames explain nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nbmgpu.errors import CellError, NbmgpuError
from nbmgpu.kernel.notebook_context import Surroundings
from nbmgpu.runs.failure import plain

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


@contextmanager
def plain_errors(shell: InteractiveShell, cell: str = "") -> Iterator[None]:
    """Let errors of nbmgpu itself, and syntax errors of ``cell``, be shown without its frames.

    Raises:
        NbmgpuError, CellSyntaxError: in the place of what was raised inside.
    """
    try:
        yield
    except NbmgpuError as error:
        raise error if hasattr(error, "_render_traceback_") else plain(error) from None
    except SyntaxError as error:
        error.filename = shell.compile.cache(cell, Surroundings(shell).cell_number)
        shown = shell.SyntaxTB.structured_traceback(type(error), error)
        raise CellSyntaxError(shown) from None


class CellSyntaxError(CellError):
    """A syntax error of the cell as IPython shows one.

    IPython has no way to show a real one without the frames that it came through.
    """

    def __init__(self, shown: list[str]) -> None:
        """Be shown as the lines ``shown``."""
        super().__init__(shown[-1].strip())
        self._shown = shown

    def _render_traceback_(self) -> list[str]:
        return self._shown


CellSyntaxError.__name__ = "SyntaxError"
