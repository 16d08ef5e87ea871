"""Settings of a rank's process that the cell changes."""

from __future__ import annotations

import torch

from nbmgpu.environment.process_settings import ProcessSettings


class CellSettings:
    """Compares the settings of this process with those before the cell."""

    def __init__(self) -> None:
        """Know of no cell."""
        self._before = ProcessSettings()

    def begin_cell(self) -> None:
        """Read the settings."""
        self._before = ProcessSettings.capture()

    def restore_gradients(self) -> None:
        """Enable gradients as before the cell, which was interrupted.

        The interrupt of a collective arrives when that returns.  Where it was called within
        ``torch.no_grad()``, this is in the exit of the context manager, which then does nothing.
        """
        torch.set_grad_enabled(self._before.torch["is_grad_enabled"])

    def changes(self, cell: str) -> ProcessSettings:
        """Return what has changed since ``begin_cell``; see ``ProcessSettings.changed_by``."""
        return self._before.changed_by(cell)
