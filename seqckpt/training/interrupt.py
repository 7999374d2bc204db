"""Ctrl-C, a scheduler's SIGTERM, a lost terminal's SIGHUP: noted, and acted upon between two steps, where everything
can be saved."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from seqckpt.launch import launched_as

__all__ = ["StopRequest", "Stopped", "catch_signals", "forget_stop", "list_signals", "stop_at_once", "was_stopped"]

_SENT_TWICE_SECONDS = 3.0  # Ctrl-C or a scheduler reaches torchrun and its processes, and torchrun hands it on to them


class Stopped(KeyboardInterrupt):
    """A run ends early because a signal asked for it: between two steps, or (`at_once`) in the middle of one.

    `exit_code` is 128 and the signal's number, as shells and schedulers read it: 130 for SIGINT, 143 for SIGTERM.
    """

    def __init__(self, number: int, *, at_once: bool = False) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number
        self.at_once = at_once


_stopped: list[Stopped] = []


def stop_at_once(number: int) -> NoReturn:
    """Raise Stopped for a signal, from its handler, and remember it: who was running may turn it into another error."""
    _stopped[:] = [Stopped(number, at_once=True)]
    raise _stopped[0]


def was_stopped() -> Stopped | None:
    """Return what `stop_at_once` raised last, if it did."""
    return _stopped[0] if _stopped else None


def forget_stop() -> None:
    """Begin anew, in a process that runs one command after another."""
    _stopped.clear()


def list_signals() -> list[int]:
    """Return the signals that stop a run: SIGINT, SIGTERM, and SIGHUP unless it is to be ignored, as under nohup."""
    numbers: list[int] = [signal.SIGINT, signal.SIGTERM]
    hang_up: int | None = getattr(signal, "SIGHUP", None)  # not on Windows
    if hang_up is not None and signal.getsignal(hang_up) != signal.SIG_IGN:
        numbers.append(hang_up)
    return numbers


class StopRequest:
    """True once a signal has asked the run to stop; `number` is that signal's."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __bool__(self) -> bool:
        return self.number is not None

    def check(self) -> None:
        """Raise Stopped if a signal has arrived."""
        if self.number is not None:
            raise Stopped(self.number)


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """Within this context the first SIGINT, SIGTERM or SIGHUP is noted in what is yielded; a second one stops at once.

    In a process that torchrun started, one that follows within three seconds is the same; so is any second SIGHUP,
    which system and shell send both when a terminal is lost. Outside the main thread signals cannot be caught, and
    nothing is ever noted.
    """
    request = StopRequest()
    first_at = -math.inf
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    process = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first_at
        if os.getpid() != process:  # a worker of a loader, forked from here: Ctrl-C reaches it too
            return
        if request:
            if launched_as().world_size > 1 and time.monotonic() - first_at < _SENT_TWICE_SECONDS:
                return
            if number == getattr(signal, "SIGHUP", None):
                return
            stop_at_once(number)
        request.number, first_at = number, time.monotonic()
        if launched_as().rank > 0:
            return
        with suppress(OSError, RuntimeError, ValueError):  # stderr may be gone, or be in the middle of a line
            print("\nstopping: saving after this step (once more: stop at once, unsaved)", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, handle) for number in list_signals()}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
