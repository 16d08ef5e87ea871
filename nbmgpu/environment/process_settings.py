"""Settings of the process that a cell changes: they are the notebook's afterwards."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from . import library_settings, torch_settings


@dataclass(frozen=True)
class ProcessSettings:
    """Settings of this process, or those of them that have changed.

    Attributes:
        folder: the working directory; empty if it is the same.
        variables: of the environment; None for one that was deleted.
        torch: see ``nbmgpu.environment.torch_settings``.
        libraries: see ``nbmgpu.environment.library_settings``.
    """

    folder: str = ""
    variables: dict[str, str | None] = field(default_factory=dict)
    torch: dict[str, Any] = field(default_factory=dict)
    libraries: library_settings.Settings = field(default_factory=dict)

    @classmethod
    def capture(cls) -> ProcessSettings:
        """Return all settings."""
        return cls(
            os.getcwd(), dict(os.environ), torch_settings.capture(), library_settings.capture()
        )

    def changed_by(self, cell: str) -> ProcessSettings:
        """Return what has changed since then; of variables, those that the ``cell`` names.

        Libraries set others, such as the address of the process group.
        """
        now = ProcessSettings.capture()
        names = {*self.variables, *now.variables}
        changed = {n for n in names if now.variables.get(n) != self.variables.get(n) and n in cell}
        torch = {n: value for n, value in now.torch.items() if value != self.torch.get(n)}
        torch.pop(torch_settings.THREADS, None)  # each process has its own number
        return ProcessSettings(
            now.folder if now.folder != self.folder else "",
            {name: now.variables.get(name) for name in changed},
            torch,
            {
                name: values
                for name, values in now.libraries.items()
                if values != self.libraries.get(name, {})
            },
        )

    def apply(self) -> None:
        """Apply what has changed in another process to this one."""
        if os.path.isdir(self.folder):  # another node may have others
            os.chdir(self.folder)
        for name, value in self.variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        torch_settings.apply(self.torch)
        library_settings.apply(self.libraries)
