"""Signals that end the check: it ends what it has started, and tells what has run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal has come; ``exit_code`` is that of a program that it ends."""

    def __init__(self, number: int) -> None:
        """Keep the ``number`` of the signal."""
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Raise ``Interrupted`` in the ``with`` block at the first signal, and ignore later ones.

    A signal that is ignored already, such as SIGHUP under nohup, stays so.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    used = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def interrupt(number: int, _: object) -> None:
        for each in used:
            signal.signal(each, signal.SIG_IGN)  # while processes are ended and files removed
        raise Interrupted(number)

    for number in used:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in used:
            signal.signal(number, before[number])
