"""Train long CNN+RNN video pipelines end to end, with exact gradients, in little memory.

Shapes are written with one legend: B batch, T time, C channels, H height, W width, D features (H also the hidden size
of a recurrent network, where no height is near). The way of the data:

    frames (B, T, C, H, W) -> ChunkedEncoder -> features (B, T, D) -> SegmentedRNN -> hidden (B, T, H) ->
    SegmentedLoss -> loss
"""

import os

# OpenMP's threads burn their cores while they wait for each other. Beside other work on the machine that makes a step
# of many small kernels ten times slower (two cores, one busy neighbour: 1 s became 9 to 19 s); sleeping threads do not.
# It counts where torch is not loaded yet, and a setting of the user's stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

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
