"""Frame metrics as the field computes them, each under the name of its protocol."""

from __future__ import annotations

from seqckpt.metrics.frame import (
    LengthMismatchError,
    PhaseScores,
    balanced_accuracy,
    confusion_matrix,
    frame_accuracy,
    jaccard_per_phase,
    phase_scores,
)
from seqckpt.metrics.protocols import Measure, PooledScores, VideoScores, pooled_scores, video_scores

__all__ = [
    "LengthMismatchError",
    "Measure",
    "PhaseScores",
    "PooledScores",
    "VideoScores",
    "balanced_accuracy",
    "confusion_matrix",
    "frame_accuracy",
    "jaccard_per_phase",
    "phase_scores",
    "pooled_scores",
    "video_scores",
]
