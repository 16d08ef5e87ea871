"""The exceptions that users see, and the common form of their messages.

Every message answers three questions in this order: what happened, what is allowed or likely, what
to type instead.  ``format_message`` joins these parts.

An error that is raised inside a rank is not wrapped.  The notebook raises an exception of the same
type, so that ``except torch.OutOfMemoryError`` works; see ``nbmgpu.runs.failure``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

TRY = re.compile(r"\s*\bTry: ")
"""Stands before what to type instead, in messages of ``format_message`` and in sentences."""


class NbmgpuError(Exception):
    """Base class of all errors that nbmgpu itself raises."""


class OptionError(NbmgpuError, ValueError):
    """An option is unknown, malformed or not available on this machine."""


class CellError(NbmgpuError):
    """The cell cannot be run on ranks."""


class UnknownNameError(CellError, NameError):
    """The cell reads a name that exists neither in the notebook nor in Python."""


class SerializationError(NbmgpuError, TypeError):
    """A value that the cell reads cannot be pickled."""


class LaunchError(NbmgpuError, RuntimeError):
    """The ranks could not be started."""


class RankError(NbmgpuError, RuntimeError):
    """A rank failed without a Python exception of its own."""


class RankKilledError(RankError):
    """A rank was ended by a signal, for example by the kernel's out-of-memory killer."""


class ResultsError(NbmgpuError, RuntimeError):
    """The results of the ranks could not be restored."""


class CheckpointError(NbmgpuError, RuntimeError):
    """A file of a checkpoint is missing or damaged."""


class ResumeError(NbmgpuError, RuntimeError):
    """The cell cannot go on where a checkpoint was written."""


class OwnershipError(NbmgpuError, RuntimeError):
    """Another user may have written a file that is to be unpickled."""


class StrategyError(NbmgpuError, RuntimeError):
    """The strategy cannot train this cell with the numbers of one device."""


class LibraryError(NbmgpuError, RuntimeError):
    """The installed version of a library lacks a name that nbmgpu replaces or uses."""


class RunTimeoutError(NbmgpuError, TimeoutError):
    """The run took longer than ``--timeout`` allows."""


class HangError(NbmgpuError, RuntimeError):
    """Ranks made no progress, and ``--on-hang stop`` has ended the run."""


LOST_SHARDS = "sharded-states-lost"
"""Topic of the notice that sharded parameters are those from before the cell."""

SAME_STEPS_HINT = (
    "no `if`, `break` or `continue` that depends on a clock, or on the data in a rank's shard of "
    "the batch; count steps, or multiply the loss by 0, instead"
)
"""Suggestion for cells whose ranks do different numbers of steps."""


def step_mismatch_message(
    finished: str = "Another rank", waiting: str = "this one", where: str = ""
) -> str:
    """Return the message for a rank that waited for another one, which had finished the cell.

    Args:
        finished: the rank that had finished.
        waiting: the rank that was waiting.
        where: the place in the cell, such as `` in line 3``, or empty.
    """
    what = f"{finished} had finished the cell while {waiting} was still waiting for it{where}"
    return format_message(f"{what}: they did different numbers of steps", instead=SAME_STEPS_HINT)


def format_message(what: str, allowed: str = "", instead: str = "") -> str:
    """Join the parts of a message: what happened, what is allowed, what to type instead."""
    parts = [what.rstrip(".") + "."]
    if allowed:
        parts.append(allowed.rstrip(".") + ".")
    if instead:
        parts.append(f"Try: {instead}")
    return "\n".join(parts)


def split_remedy(message: str) -> tuple[str, str]:
    """Split a message into what happened and what is allowed, and what to type instead."""
    what, *remedy = TRY.split(message, maxsplit=1)
    return what.strip(), remedy[0].strip() if remedy else ""


def closest_match(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that is most similar to ``word``, or None if none is similar."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return found[0] if found else None
