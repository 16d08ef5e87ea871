"""The node launchers of a job, as the engine has started them."""

from __future__ import annotations

from typing import Protocol


class NodeProcesses(Protocol):
    """One node launcher per node."""

    @property
    def ended(self) -> bool:
        """Whether none of them is left."""
        ...

    @property
    def failed(self) -> bool:
        """Whether one of them has ended with an error."""
        ...

    @property
    def lost(self) -> str:
        """Which node the engine has lost, without a full stop; empty if it knows of none."""
        ...

    def why_ended(self) -> str:
        """Return why the scheduler ends the job, as a sentence; empty if that is not known."""
        ...

    def output(self) -> str:
        """Return the end of what they have printed."""
        ...

    def have_copied(self, since: float) -> bool:
        """Return whether the run folder has all that nodes had written at ``since``.

        Args:
            since: a time of ``time.monotonic()``.
        """
        ...

    def end(self, at_once: bool = False) -> None:
        """End those that are left.

        Args:
            at_once: do not wait for them: a node is lost, and the others are free for other jobs.
        """
        ...
