"""The IPython shell that a run is called from: input transformation, cell sources, notebook."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


@dataclass(frozen=True)
class NotebookContext:
    """The IPython shell that a run is called from; None in a plain script."""

    shell: InteractiveShell | None = None

    @classmethod
    def current(cls) -> NotebookContext:
        """Return the context of this process, without importing IPython."""
        ipython = sys.modules.get("IPython")
        return cls(ipython.get_ipython() if ipython else None)

    @property
    def transform(self) -> Callable[[str], str] | None:
        """The shell's transformation of magics and shell lines into Python."""
        return self.shell.transform_cell if self.shell else None

    @property
    def namespace(self) -> dict[str, Any]:
        """The notebook's names."""
        return self.shell.user_ns if self.shell else {}

    @property
    def in_jupyter(self) -> bool:
        """Whether there is a front end that can show widgets."""
        return self.shell is not None and hasattr(self.shell, "kernel")

    @property
    def notebook(self) -> str:
        """Path of the notebook; empty where the Jupyter server does not pass it to the kernel."""
        return os.environ.get("JPY_SESSION_NAME", "")

    def sources(self) -> dict[str, tuple[str, int | None]]:
        """Return source and execution count (or None) of earlier cells, by file name."""
        compiler = getattr(self.shell, "compile", None)
        return _in_memory_sources(getattr(compiler, "_filename_map", {}).get)

    @property
    def cells(self) -> tuple[str, ...]:
        """The sources of earlier cells, in order of execution."""
        history = getattr(self.shell, "history_manager", None)
        return tuple(history.input_hist_parsed[1:-1]) if history else ()

    @property
    def cell_number(self) -> int:
        """The execution count of the cell that runs now; IPython's counter may be ahead of it."""
        history = getattr(self.shell, "history_manager", None)
        return max(1, len(history.input_hist_parsed) - 1) if history else 1


def _in_memory_sources(number_of: Callable[[str], int | None]) -> dict[str, tuple[str, int | None]]:
    """Return the sources that exist in memory only, such as the notebook's cells."""
    return {
        filename: ("".join(entry[2]), number_of(filename))
        for filename, entry in list(linecache.cache.items())
        if len(entry) == 4 and entry[1] is None and not os.path.exists(filename)
    }
