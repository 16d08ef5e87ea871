"""The fault matrix as data: who is hit, by which signal, when; and what must come of it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["rank 0", "rank 1", "launcher", "fork server", "kernel", "Jupyter server"]
ROLES: tuple[Role, ...] = (
    "rank 0", "rank 1", "launcher", "fork server", "kernel", "Jupyter server",
)  # fmt: skip
SIGNALS = ("KILL", "TERM", "STOP")
"""Of the last one, SIGCONT follows."""

PHASES = {
    "packing": "the kernel serializes what the cell reads; there are no ranks yet",
    "launch": "the run is requested; the launcher, if there is one, has no ranks yet",
    "join": "one rank waits in init_process_group for the other",
    "training": "ranks compute, after half of the steps",
    "all-reduce": "one rank waits in a backward pass for the other",
    "barrier": "one rank waits in a collective of gloo for the other",
    "checkpoint": "a checkpoint is complete, the next one is not",
    "sending": "the cell is finished, and a rank serializes its results",
    "write-back": "the ranks have ended, and the kernel restores the results",
}
LARGE: dict[str, Any] = {"width": 1500, "samples": 240}
"""Of the model and data of a cell with checkpoints, which then take a while."""

ABSENT: dict[str, tuple[Role, ...]] = {
    "packing": ("rank 0", "rank 1", "launcher"),
    "launch": ("rank 0", "rank 1"),
    "write-back": ("rank 0", "rank 1", "launcher"),
}
"""Processes that do not exist in a phase."""

HALF, ALL = 5, 10
"""Steps before a rank holds, and in all."""


@dataclass(frozen=True)
class Case:
    """One fault."""

    role: Role
    signal: str
    phase: str

    @property
    def id(self) -> str:
        return f"{self.role}, {self.signal}, {self.phase}"

    @property
    def ends_notebook(self) -> bool:
        """Whether the process of the notebook ends with it."""
        return self.role in ("kernel", "Jupyter server") and self.signal != "STOP"

    @property
    def interrupts(self) -> bool:
        """Whether the kernel is interrupted: a Jupyter server does so before it ends a kernel."""
        return self.role == "Jupyter server" and self.signal == "TERM"


@dataclass(frozen=True)
class Expected:
    """What the notebook has after the fault.

    Attributes:
        error: the name of the exception's type; empty if the cell finishes.
        words: a regular expression that the message contains.
        state: the weights: those from "before" the cell, what was "trained" so far, or "all".
    """

    error: str = ""
    words: str = ""
    state: Literal["before", "trained", "all"] = "all"


def cases() -> list[Case]:
    """Return all faults that exist."""
    return [
        Case(role, sig, phase)
        for role in ROLES
        for sig in SIGNALS
        for phase in PHASES
        if role not in ABSENT.get(phase, ())
    ]


def expected(case: Case) -> Expected:
    """Return what must come of a fault that the notebook survives."""
    if case.signal == "STOP" or case.phase == "write-back":
        return Expected()
    match case.role:
        case "rank 0" | "rank 1":
            return _of_rank(case)
        case "launcher":
            words = {"KILL": "launcher was killed", "TERM": "launcher was ended by SIGTERM"}
            is_asked = case.signal == "TERM" and case.phase not in ("launch", "join")
            return Expected("LaunchError", words[case.signal], "trained" if is_asked else "before")
        case _:
            if case.phase == "packing":  # the next fork server is started for this run
                return Expected()
            return Expected("LaunchError", "fork server has ended", "before")


def _of_rank(case: Case) -> Expected:
    number, trained = case.role[-1], case.phase != "join"
    if case.signal == "KILL":
        state = "trained" if trained and case.role == "rank 1" else "before"
        words = f"Rank {number} of 2 was ended by SIGKILL"
        return Expected("RankKilledError", words, state)  # type: ignore[arg-type]
    if case.phase == "sending":  # results are sent all the same
        return Expected()
    words = f"Rank {number} of 2 was (interrupted|ended by SIGTERM)"
    error = "KeyboardInterrupt|RankKilledError"
    return Expected(error, words, "trained" if trained else "before")


def number(name: str) -> int:
    """Return the number of a signal by its short name."""
    return int(getattr(signal, f"SIG{name}"))
