"""Ctrl-C during training: noted, and acted upon between two steps, where everything can be saved."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["InterruptFlag", "catch_interrupt"]


class InterruptFlag:
    """True once an interrupt has arrived."""

    def __init__(self) -> None:
        self._is_set = False

    def __bool__(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True


@contextmanager
def catch_interrupt() -> Iterator[InterruptFlag]:
    """Within this context the first SIGINT sets the flag that is yielded; a second one raises KeyboardInterrupt.

    Outside the main thread signals cannot be caught, and the flag stays unset.
    """
    flag = InterruptFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if flag:
            raise KeyboardInterrupt
        flag.set()
        print("\ninterrupted: saving after this step (once more: stop at once, unsaved)", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)
