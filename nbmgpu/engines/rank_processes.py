"""The ranks of a run as processes that can be polled and signalled."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from typing import ClassVar


class RankProcesses(ABC):
    """All ranks of one run, which an engine has started."""

    patience: ClassVar[float] = 1.0
    """Factor for the seconds after which ranks are killed that do not react to an interrupt."""

    @abstractmethod
    def alive(self) -> bool:
        """Return whether there is a rank whose end ``poll`` has not returned yet."""

    @abstractmethod
    def poll(self) -> list[tuple[int, int]]:
        """Return ``(rank, exit code)`` of ranks that ended since the last call.

        Exit codes are as in subprocess: negative for a signal.
        """

    @abstractmethod
    def signal(self, sig: signal.Signals, others: bool = False) -> None:
        """Send ``sig`` to all living ranks, or with ``others`` to those other than rank 0."""

    def problem(self) -> str:
        """Return why the ranks cannot run, in words; the run then fails.  Empty if they can."""
        return ""

    def is_verified(self) -> bool:
        """Return whether to wait for a process that compares what the ranks have done."""
        return False

    def end_verification(self) -> None:  # noqa: B027 - most engines have no such process
        """End that process."""
