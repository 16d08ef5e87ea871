"""The exceptions a user can meet, and the one form in which they are shown.

Every message answers three questions, in this order: what happened, what is
allowed or likely, what to type instead.  ``format_message`` puts them together, so
that all messages read alike.

An error raised inside a rank is not wrapped: the notebook gets the exception's
own type back, so that ``except torch.OutOfMemoryError`` works; see
``nbmgpu.runs.failure``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NbmgpuError(Exception):
    """Base of every error that nbmgpu itself raises."""


class OptionError(NbmgpuError, ValueError):
    """An option is unknown, malformed or cannot be had on this machine."""


class CellError(NbmgpuError):
    """The cell cannot be run on ranks as it stands."""


class UnknownNameError(CellError, NameError):
    """The cell reads a name that exists neither in the notebook nor in Python."""


class SerializationError(NbmgpuError, TypeError):
    """A value that the cell reads cannot be pickled."""


class LaunchError(NbmgpuError, RuntimeError):
    """The ranks could not be started."""


class RankError(NbmgpuError, RuntimeError):
    """A rank failed in a way that has no Python exception of its own."""


class RankKilledError(RankError):
    """A rank was ended by a signal, for example by the kernel's memory killer."""


class ResultsError(NbmgpuError, RuntimeError):
    """What the ranks have made could not be brought back."""


class StrategyError(NbmgpuError, RuntimeError):
    """The strategy cannot train this cell with the numbers of one device."""


class LibraryError(NbmgpuError, RuntimeError):
    """The installed version of a library lacks a name that nbmgpu replaces or uses."""


class RunTimeoutError(NbmgpuError, TimeoutError):
    """The run took longer than ``--timeout`` allowed."""


SAME_STEPS_HINT = (
    "no `if`, `break` or `continue` that depends on a clock, or on what is in a rank's share of "
    "the batch; count steps, or multiply the loss by 0, instead"
)
"""The way out where ranks did different numbers of steps."""


def step_mismatch_message(through: str = "Another rank", waiting: str = "this one", where: str = "") -> str:
    """Return the words for a rank that was ``waiting`` for one that is ``through`` its cell."""
    what = f"{through} had come to the end of the cell, and {waiting} still waited for it{where}"
    return format_message(f"{what}: they did different numbers of steps", instead=SAME_STEPS_HINT)


def format_message(what: str, allowed: str = "", instead: str = "") -> str:
    """Join the three parts of a message: what happened, what is allowed, what to type."""
    parts = [what.rstrip(".") + "."]
    if allowed:
        parts.append(allowed.rstrip(".") + ".")
    if instead:
        parts.append(f"Try: {instead}")
    return "\n".join(parts)


def closest_match(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice most like ``word``, or None when nothing is near."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return found[0] if found else None
