"""Ctrl-C while the kernel waits for a run: it stops the run, not the waiting."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_to(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` at every SIGINT, instead of raising an exception in the middle of something.

    Python handles signals in the main thread only; in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
