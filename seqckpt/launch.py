"""Which of the processes that torchrun started this one is, known from the environment before they meet."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from dataclasses import dataclass

__all__ = ["Launched", "end_with_launcher", "is_launched", "launched_as"]

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PARENT = os.getppid()  # as it was when this process began
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Launched:
    """The number of this process, of how many, and its number on this machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


def is_launched() -> bool:
    """Say whether torchrun, or another launcher that tells what torchrun does, started this process."""
    return all(name in os.environ for name in _NAMES)


def end_with_launcher() -> None:
    """Let the system send this process SIGTERM when its launcher dies, even by kill -9; Linux alone can.

    Without that the processes of a killed torchrun would train on, and nobody would know of them.
    """
    if not is_launched() or not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != _PARENT:  # it died before
        os.kill(os.getpid(), signal.SIGTERM)


def launched_as() -> Launched:
    """Say which process this is; the only one where torchrun was not used."""
    if not is_launched():
        return Launched()
    rank = os.environ["RANK"]
    return Launched(int(rank), int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", rank)))
