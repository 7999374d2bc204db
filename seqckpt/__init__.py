"""Train long CNN+RNN video pipelines end to end, with exact gradients, in little memory.

Shapes are written with one legend: B batch, T time, C channels, H height, W width, D features (H also the hidden size
of a recurrent network, where no height is near). The way of the data:

    frames (B, T, C, H, W) -> ChunkedEncoder -> features (B, T, D) -> SegmentedRNN -> hidden (B, T, H) ->
    SegmentedLoss -> loss
"""

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

__all__ = [
    "Checkpointed",
    "ChunkedEncoder",
    "Schedule",
    "SegmentedLoss",
    "SegmentedRNN",
    "check_replay",
    "checkpoint_sequential",
    "checkpointed_scan",
    "is_replaying",
]
