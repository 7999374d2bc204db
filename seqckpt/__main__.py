"""`python -m seqckpt`, the command `seqckpt`, and train.py: where a process begins.

Signals are answered before torch is imported, which takes seconds. Python would print a traceback for a Ctrl-C in that
time, or an ImportError of whatever was half imported, or lose it. Here it ends the process at once, with one line and
the exit code that shells and schedulers read.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from seqckpt.launch import end_with_launcher

__all__ = ["main"]


def _leave(number: int, frame: FrameType | None) -> None:
    """End the process here and now; there is nothing to save yet, or all is written already."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(128 + number)


def _answer_signals() -> None:
    signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGTERM, _leave)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # which nohup has set
        signal.signal(signal.SIGHUP, _leave)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` defaults to the arguments of the process."""
    _answer_signals()
    end_with_launcher()
    from seqckpt.cli import main as run

    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
