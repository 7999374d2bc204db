"""Which of the processes that torchrun started this one is, known from the environment before they meet."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["Launched", "launched_as"]


@dataclass(frozen=True)
class Launched:
    """The number of this process, of how many, and its number on this machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


def launched_as() -> Launched:
    """Say which process this is; the only one where torchrun was not used."""
    if not all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return Launched()
    rank = os.environ["RANK"]
    return Launched(int(rank), int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", rank)))
