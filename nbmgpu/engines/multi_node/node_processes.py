"""The node launchers of a job, as the engine has started them."""

from __future__ import annotations

from typing import Protocol


class NodeProcesses(Protocol):
    """One node launcher per node."""

    @property
    def ended(self) -> bool:
        """Whether none of them is left."""
        ...

    def problem(self) -> str:
        """Return why they ended before their ranks did, in words."""
        ...

    def end(self) -> None:
        """End those that are left."""
        ...
