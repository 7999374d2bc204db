"""The engine: exact recomputation for encoders, recurrent networks and losses over long sequences. torch only.

Everything here stands on one primitive, `replay.replay_loop`; start reading there.
"""

from seqckpt.core.replay import is_replaying
from seqckpt.core.replay_check import check_replay
from seqckpt.core.segmented_rnn import Core, SegmentedRNN, checkpointed_scan

__all__ = ["Core", "SegmentedRNN", "check_replay", "checkpointed_scan", "is_replaying"]
