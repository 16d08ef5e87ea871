"""Ctrl-C while the kernel waits for a run: it stops the run instead of the waiting."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_to(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` at every SIGINT, so that nothing is left half done by an exception.

    Signals reach the main thread alone; in others this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
