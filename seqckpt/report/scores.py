"""The tables of scores in a report: every protocol by its name, per phase, and per video."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqckpt.metrics import (
    Accumulator,
    DelayScores,
    PooledScores,
    RelaxedScores,
    Scores,
    SegmentalScores,
    VideoScores,
)
from seqckpt.report.records import Row
from seqckpt.report.stretches import frame_seconds
from seqckpt.training import VideoPrediction
from seqckpt.units import format_seconds

__all__ = ["score_tables"]

_RELAXED = ("relaxed", "relaxed-matlab")
_MEASURES = {"precision": "precision", "recall": "recall", "Jaccard": "jaccard", "F1": "f1"}


def score_tables(
    predictions: Sequence[VideoPrediction], phase_names: Sequence[str], accumulator: Accumulator
) -> tuple[dict[str, list[Row]], VideoScores, PooledScores]:
    """Score predictions with an empty Accumulator; return tables by title, and the scores of `video` and `pooled`."""
    for entry in predictions:
        accumulator.add(entry.truth, entry.prediction, video=entry.video_id)
    scores = accumulator.scores()
    by_video, pooled, segmental, delay = (scores[name] for name in ("video", "pooled", "segmental", "delay"))
    assert isinstance(by_video, VideoScores) and isinstance(pooled, PooledScores)  # noqa: PT018
    assert isinstance(segmental, SegmentalScores) and isinstance(delay, DelayScores)  # noqa: PT018
    tables = {
        "Frames, by protocol": [_list_protocol(name, scores[name]) for name in ("video", "pooled", *_RELAXED)],
        "Segments, in per cent": [_list_segmental(segmental)],
        "Phases": _list_phases(by_video, pooled, phase_names),
        "Delay of each phase's beginning, in seconds": _list_delays(delay, phase_names),
        "Videos": _list_videos(predictions, by_video, segmental),
    }
    return tables, by_video, pooled


def _list_protocol(name: str, scores: Scores) -> Row:
    """Return a protocol's scores over all videos; None for what it does not have."""
    if isinstance(scores, PooledScores):
        accuracy, spread = scores.accuracy, None
        means = {shown: getattr(scores, f"{measure}_macro") for shown, measure in _MEASURES.items()}
    else:
        assert isinstance(scores, VideoScores | RelaxedScores)
        accuracy, spread = scores.accuracy_mean, scores.accuracy_std_over_videos
        found = {shown: getattr(scores, measure, None) for shown, measure in _MEASURES.items()}
        means = {shown: measure and measure.mean for shown, measure in found.items()}
    balanced = getattr(scores, "balanced_accuracy_mean", getattr(scores, "balanced_accuracy", None))
    return {"protocol": name, "accuracy": accuracy, "± over videos": spread, "balanced accuracy": balanced, **means}


def _list_segmental(scores: SegmentalScores) -> Row:
    f1 = {f"F1@{overlap}": value for overlap, value in scores.f1.items()}
    return {"protocol": "segmental", "edit": scores.edit_mean, "± over videos": scores.edit_std_over_videos, **f1}


def _list_delays(scores: DelayScores, phase_names: Sequence[str]) -> list[Row]:
    return [
        {
            "phase": name,
            "delay (mean over videos)": float(scores.delay.per_phase[number]),
            "absolute delay": float(scores.absolute_delay.per_phase[number]),
            "videos that miss it": int(scores.missed_per_phase[number]),
        }
        for number, name in enumerate(phase_names)
    ]


def _list_phases(by_video: VideoScores, pooled: PooledScores, phase_names: Sequence[str]) -> list[Row]:
    of_video = {f"{shown} (video)": getattr(by_video, name).per_phase for shown, name in _MEASURES.items()}
    of_pooled = {f"{shown} (pooled)": getattr(pooled, f"{name}_per_phase") for shown, name in _MEASURES.items()}
    frames = pooled.confusion.sum(axis=1)
    return [
        {
            "phase": name,
            "labelled frames": int(frames[number]),
            **{shown: float(values[number]) for shown, values in {**of_video, **of_pooled}.items()},
        }
        for number, name in enumerate(phase_names)
    ]


def _list_videos(
    predictions: Sequence[VideoPrediction], by_video: VideoScores, segmental: SegmentalScores
) -> list[Row]:
    return [
        {
            "video": entry.video_id,
            "length": format_seconds(len(entry.seconds) * frame_seconds(entry)),
            "frames": len(entry.seconds),
            "wrong frames": int(((entry.truth >= 0) & (entry.truth != entry.prediction)).sum()),
            "without label": int(np.sum(entry.truth < 0)),
            "accuracy (video)": float(by_video.accuracy_per_video[number]),
            "Jaccard (video)": float(by_video.jaccard.per_video[number]),
            "edit (segmental), %": float(segmental.edit_per_video[number]),
        }
        for number, entry in enumerate(predictions)
    ]
