"""The engine: exact recomputation for encoders, recurrent networks and losses over long sequences. torch only.

Everything here stands on one primitive, `replay.replay_loop`; start reading there.
"""

from seqckpt.core.checkpointed import Checkpointed
from seqckpt.core.chunked_encoder import ChunkedEncoder, FrameSource, Keep
from seqckpt.core.criteria import TemporalSmoothing
from seqckpt.core.frame_parallel import FrameParallel, frame_spans
from seqckpt.core.replay import is_replaying
from seqckpt.core.replay_check import check_replay
from seqckpt.core.schedule import Schedule
from seqckpt.core.segmented_loss import SegmentedLoss
from seqckpt.core.segmented_rnn import Core, SegmentedRNN, checkpointed_scan
from seqckpt.core.sequential import checkpoint_sequential

__all__ = [
    "Checkpointed",
    "ChunkedEncoder",
    "Core",
    "FrameParallel",
    "FrameSource",
    "Keep",
    "Schedule",
    "SegmentedLoss",
    "SegmentedRNN",
    "TemporalSmoothing",
    "check_replay",
    "checkpoint_sequential",
    "checkpointed_scan",
    "frame_spans",
    "is_replaying",
]
