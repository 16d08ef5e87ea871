"""Settings of a rank's process that the cell changes."""

from __future__ import annotations

from nbmgpu.environment.process_settings import ProcessSettings


class CellSettings:
    """Compares the settings of this process with those before the cell."""

    def __init__(self) -> None:
        """Know of no cell."""
        self._before = ProcessSettings()

    def begin_cell(self) -> None:
        """Read the settings."""
        self._before = ProcessSettings.capture()

    def changes(self, cell: str) -> ProcessSettings:
        """Return what has changed since ``begin_cell``; see ``ProcessSettings.changed_by``."""
        return self._before.changed_by(cell)
