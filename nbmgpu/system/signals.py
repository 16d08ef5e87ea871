"""A signal handler that a process and its forked children share."""

from __future__ import annotations


def leave_to_head(*_: object) -> None:
    """Do nothing: the head of the run gets this signal as well, and decides how the run ends.

    A scheduler signals all processes of a job.  Unlike ``SIG_IGN``, this is not inherited by
    programs that the cell starts.
    """
