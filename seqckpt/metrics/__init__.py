"""Metrics as the field computes them, each under the name of its protocol.

    video           every video by itself, then means over videos and over phases     [0, 1]
    pooled          all frames of all videos as one sequence                          [0, 1]
    relaxed         video, with 10 s of tolerance around the phases of the truth      [0, 1]
    relaxed-matlab  the same with the published script's fault, to compare with papers  [0, 1]
    segmental       edit score and F1@{10,25,50} of segments                          percent
    delay           how late each phase was seen to begin                             seconds

- `frame`: one sequence of frames. `segments`: its stretches of one phase. `measure`: means and spreads.
- `protocols` (video, pooled), `relaxed`, `segmental`, `delay`: sets of videos.
- `accumulator`: videos gathered, and scored under every protocol. `rows`: the scores as one flat table.

Frames whose truth is the ignore index are taken out before anything is computed: they count nowhere.
"""

from __future__ import annotations

from seqckpt.metrics.accumulator import PROTOCOLS, Accumulator, InferenceTime, Scores
from seqckpt.metrics.delay import DelayScores, delay_scores, transition_delays
from seqckpt.metrics.frame import (
    LengthMismatchError,
    PhaseScores,
    balanced_accuracy,
    confusion_matrix,
    frame_accuracy,
    jaccard_per_phase,
    phase_scores,
)
from seqckpt.metrics.measure import Measure
from seqckpt.metrics.protocols import PooledScores, VideoScores, pooled_scores, video_scores
from seqckpt.metrics.relaxed import (
    CHOLEC80,
    M2CAI16,
    TOLERANCE_SECONDS,
    Neighbours,
    RelaxedScores,
    choose_neighbours,
    relaxed_scores,
)
from seqckpt.metrics.rows import ScoreRow, score_rows
from seqckpt.metrics.segmental import OVERLAPS, SegmentalScores, edit_score, segment_counts, segmental_scores
from seqckpt.metrics.segments import Segments, find_background, find_segments

__all__ = [
    "CHOLEC80",
    "M2CAI16",
    "OVERLAPS",
    "PROTOCOLS",
    "TOLERANCE_SECONDS",
    "Accumulator",
    "DelayScores",
    "InferenceTime",
    "LengthMismatchError",
    "Measure",
    "Neighbours",
    "PhaseScores",
    "PooledScores",
    "RelaxedScores",
    "ScoreRow",
    "Scores",
    "SegmentalScores",
    "Segments",
    "VideoScores",
    "balanced_accuracy",
    "choose_neighbours",
    "confusion_matrix",
    "delay_scores",
    "edit_score",
    "find_background",
    "find_segments",
    "frame_accuracy",
    "jaccard_per_phase",
    "phase_scores",
    "pooled_scores",
    "relaxed_scores",
    "score_rows",
    "segment_counts",
    "segmental_scores",
    "transition_delays",
    "video_scores",
]
