"""Scores of a set of videos under the protocols `video` and `pooled`; every output carries the protocol's name.

`video`: each video is scored by itself. Accuracy is averaged over videos. A phase measure is averaged over the videos
    in which it is defined (see `seqckpt.metrics.frame`), phase by phase, and then over phases.
`pooled`: all frames of all videos are scored as one sequence; a phase measure is averaged over the phases that occur
    in truth or prediction and have a defined value.

Other protocols are in `relaxed`, `segmental` and `delay`; `accumulator` gathers videos for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seqckpt.errors import UsageError
from seqckpt.metrics.frame import (
    IGNORE_INDEX,
    Floats,
    Integers,
    LengthMismatchError,
    confusion_matrix,
    mean_of_defined,
    scores_of_confusion,
)
from seqckpt.metrics.measure import Measure, average, plain, std_of_defined

__all__ = ["MEASURES", "PooledScores", "VideoScores", "pooled_scores", "video_scores"]

MEASURES = ("precision", "recall", "jaccard", "f1")


@dataclass(frozen=True)
class VideoScores:
    """Scores under the protocol `video`; `accuracy_mean` and `jaccard.mean` are the field's headlines."""

    protocol: str
    num_videos: int
    num_frames: int
    accuracy_mean: float
    accuracy_std_over_videos: float
    accuracy_per_video: Floats
    balanced_accuracy_mean: float
    precision: Measure
    recall: Measure
    jaccard: Measure
    f1: Measure
    confusion: Integers

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and lists for JSON, undefined values as None."""
        return plain(self)


@dataclass(frozen=True)
class PooledScores:
    """Scores under the protocol `pooled`: macro means over phases, and arrays (K,) per phase."""

    protocol: str
    num_videos: int
    num_frames: int
    accuracy: float
    balanced_accuracy: float
    precision_macro: float
    recall_macro: float
    jaccard_macro: float
    f1_macro: float
    precision_per_phase: Floats
    recall_per_phase: Floats
    jaccard_per_phase: Floats
    f1_per_phase: Floats
    confusion: Integers

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and lists for JSON, undefined values as None."""
        return plain(self)


def video_scores(
    truths: Sequence[ArrayLike],
    predictions: Sequence[ArrayLike],
    num_phases: int,
    *,
    ignore_index: int = IGNORE_INDEX,
) -> VideoScores:
    """Score videos one by one, then average: one integer array per video in `truths` and `predictions`.

    >>> scores = video_scores([[0, 0, 1, 1], [0, 0]], [[0, 1, 1, 1], [0, 0]], num_phases=2)
    >>> scores.protocol, scores.accuracy_mean, scores.jaccard.per_phase.round(3)
    ('video', 0.875, array([0.75 , 0.667]))
    """
    confusions = _confusions(truths, predictions, num_phases, ignore_index)
    accuracies = np.array([_accuracy(confusion) for confusion in confusions])
    per_video = [scores_of_confusion(confusion) for confusion in confusions]
    balanced = np.array([mean_of_defined(scores.recall) for scores in per_video])
    measures = {name: average(np.stack([getattr(scores, name) for scores in per_video])) for name in MEASURES}
    return VideoScores(
        protocol="video",
        num_videos=len(confusions),
        num_frames=int(sum(confusion.sum() for confusion in confusions)),
        accuracy_mean=mean_of_defined(accuracies),
        accuracy_std_over_videos=std_of_defined(accuracies),
        accuracy_per_video=accuracies,
        balanced_accuracy_mean=mean_of_defined(balanced),
        confusion=np.sum(confusions, axis=0),
        **measures,
    )


def pooled_scores(
    truths: Sequence[ArrayLike],
    predictions: Sequence[ArrayLike],
    num_phases: int,
    *,
    ignore_index: int = IGNORE_INDEX,
) -> PooledScores:
    """Score all frames of all videos as one sequence: one integer array per video in `truths` and `predictions`.

    >>> scores = pooled_scores([[0, 0, 1, 1], [0, 0]], [[0, 1, 1, 1], [0, 0]], num_phases=3)
    >>> scores.protocol, round(scores.accuracy, 3), scores.jaccard_per_phase.round(3)
    ('pooled', 0.833, array([0.75 , 0.667,   nan]))
    """
    confusions = _confusions(truths, predictions, num_phases, ignore_index)
    confusion = np.sum(confusions, axis=0)
    scores = scores_of_confusion(confusion)
    means = {f"{name}_macro": mean_of_defined(getattr(scores, name)) for name in MEASURES}
    arrays = {f"{name}_per_phase": getattr(scores, name) for name in MEASURES}
    fields: dict[str, Any] = {**means, **arrays}
    return PooledScores(
        protocol="pooled",
        num_videos=len(confusions),
        num_frames=int(confusion.sum()),
        accuracy=_accuracy(confusion),
        balanced_accuracy=mean_of_defined(scores.recall),
        confusion=confusion,
        **fields,
    )


def check_videos(truths: Sequence[ArrayLike], predictions: Sequence[ArrayLike]) -> None:
    """Raise UsageError where there is no video, LengthMismatchError where some have no labels or no predictions."""
    if len(truths) != len(predictions):
        raise LengthMismatchError(
            f"{len(truths)} videos have labels and {len(predictions)} predictions: expected one each"
        )
    if not len(truths):  # an array (V, T) has no truth value
        raise UsageError("no video to score: expected at least one")


def _confusions(
    truths: Sequence[ArrayLike], predictions: Sequence[ArrayLike], num_phases: int, ignore_index: int
) -> list[Integers]:
    check_videos(truths, predictions)
    pairs = zip(truths, predictions, strict=True)
    return [confusion_matrix(truth, guess, num_phases, ignore_index=ignore_index) for truth, guess in pairs]


def _accuracy(confusion: Integers) -> float:
    num_frames = confusion.sum()
    return float(np.trace(confusion) / num_frames) if num_frames else float("nan")
