"""The tables of scores in a report: every protocol by its name, per phase, and per video."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqckpt.metrics import PooledScores, VideoScores, pooled_scores, video_scores
from seqckpt.report.records import Row
from seqckpt.report.stretches import frame_seconds
from seqckpt.training import VideoPrediction
from seqckpt.units import format_seconds

__all__ = ["score_tables"]

_MEASURES = {"precision": "precision", "recall": "recall", "Jaccard": "jaccard", "F1": "f1"}


def score_tables(
    predictions: Sequence[VideoPrediction], phase_names: Sequence[str]
) -> tuple[dict[str, list[Row]], VideoScores, PooledScores]:
    """Score predictions; return tables by title, and the scores that they were made from."""
    truths, guesses = [entry.truth for entry in predictions], [entry.prediction for entry in predictions]
    by_video = video_scores(truths, guesses, len(phase_names))
    pooled = pooled_scores(truths, guesses, len(phase_names))
    tables = {
        "Protocols": _list_protocols(by_video, pooled),
        "Phases": _list_phases(by_video, pooled, phase_names),
        "Videos": _list_videos(predictions, by_video),
    }
    return tables, by_video, pooled


def _list_protocols(by_video: VideoScores, pooled: PooledScores) -> list[Row]:
    means = {shown: getattr(by_video, name).mean for shown, name in _MEASURES.items()}
    macro = {shown: getattr(pooled, f"{name}_macro") for shown, name in _MEASURES.items()}
    accuracy = {"accuracy": by_video.accuracy_mean, "± over videos": by_video.accuracy_std_over_videos}
    return [
        {"protocol": by_video.protocol, **accuracy, "balanced accuracy": by_video.balanced_accuracy_mean, **means},
        {
            "protocol": pooled.protocol,
            "accuracy": pooled.accuracy,
            "± over videos": None,
            "balanced accuracy": pooled.balanced_accuracy,
            **macro,
        },
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


def _list_videos(predictions: Sequence[VideoPrediction], by_video: VideoScores) -> list[Row]:
    return [
        {
            "video": entry.video_id,
            "length": format_seconds(len(entry.seconds) * frame_seconds(entry)),
            "frames": len(entry.seconds),
            "wrong frames": int(((entry.truth >= 0) & (entry.truth != entry.prediction)).sum()),
            "without label": int(np.sum(entry.truth < 0)),
            "accuracy (video)": float(by_video.accuracy_per_video[number]),
            "Jaccard (video)": float(by_video.jaccard.per_video[number]),
        }
        for number, entry in enumerate(predictions)
    ]
