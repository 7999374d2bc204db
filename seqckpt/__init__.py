"""Train long CNN+RNN video pipelines end to end, with exact gradients, in little memory.

Shapes are written with one legend: B batch, T time, C channels, H height, W width, D features (H also the hidden size
of a recurrent network, where no height is near). The way of the data:

    frames (B, T, C, H, W) -> ChunkedEncoder -> features (B, T, D) -> SegmentedRNN -> hidden (B, T, H) ->
    SegmentedLoss -> loss
"""

import os
from typing import TYPE_CHECKING

# OpenMP's threads burn their cores while they wait for each other. Beside other work on the machine that makes a step
# of many small kernels ten times slower (two cores, one busy neighbour: 1 s became 9 to 19 s); sleeping threads do not.
# It counts where torch is not loaded yet, and a setting of the user's stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from seqckpt.core import (
        Checkpointed,
        ChunkedEncoder,
        Schedule,
        SegmentedLoss,
        SegmentedRNN,
        check_replay,
        checkpoint_sequential,
        checkpointed_scan,
        is_replaying,
    )
    from seqckpt.memory import find_best_reset_points, plan_schedule, suggest_checkpoint_location, trace_memory

__all__ = [
    "Checkpointed",
    "ChunkedEncoder",
    "Schedule",
    "SegmentedLoss",
    "SegmentedRNN",
    "check_replay",
    "checkpoint_sequential",
    "checkpointed_scan",
    "find_best_reset_points",
    "is_replaying",
    "plan_schedule",
    "suggest_checkpoint_location",
    "trace_memory",
]


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for: torch takes seconds, in which Ctrl-C could not be answered."""
    if name not in __all__ and name not in _FOLDERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import seqckpt.core
    import seqckpt.memory

    if name in __all__:
        globals()[name] = getattr(seqckpt.core if name in seqckpt.core.__all__ else seqckpt.memory, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_FOLDERS})


_FOLDERS = ("core", "memory", "errors", "units", "partition", "transparent", "atomic")  # what the public names bring
