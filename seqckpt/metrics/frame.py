"""Metrics of one sequence of frames: accuracy, confusion matrix, and precision, recall, Jaccard and F1 per phase.

Pure functions on integer arrays (numpy, or tensors on the CPU) of one dimension. A frame whose truth is the ignore
index counts nowhere. What is undefined (0 / 0) is nan, never 0 or 1:

    phase in truth, predicted      precision TP/predicted   recall TP/truth   Jaccard TP/union   F1
    phase in truth, not predicted  nan                      0                 0                  0
    phase only predicted           0                        nan               0                  0
    phase in neither               nan                      nan               nan                nan
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqckpt.errors import UsageError

__all__ = [
    "IGNORE_INDEX",
    "LengthMismatchError",
    "PhaseScores",
    "balanced_accuracy",
    "confusion_matrix",
    "frame_accuracy",
    "jaccard_per_phase",
    "phase_scores",
]

IGNORE_INDEX = -100

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class LengthMismatchError(UsageError):
    """Truth and prediction have different numbers of frames; nothing is cut off to make them fit."""


@dataclass(frozen=True)
class PhaseScores:
    """Scores of one sequence per phase: float64 arrays (K,) in [0, 1], nan where undefined."""

    precision: Floats
    recall: Floats
    jaccard: Floats
    f1: Floats


def frame_accuracy(truth: ArrayLike, prediction: ArrayLike, ignore_index: int = IGNORE_INDEX) -> float:
    """Return the share of labelled frames whose phase is right, in [0, 1]; nan where no frame is labelled.

    >>> frame_accuracy([0, -100, 1, 1], [0, 5, 1, 0])
    0.6666666666666666
    """
    truth, prediction = labelled_frames(truth, prediction, ignore_index)
    return float((truth == prediction).mean()) if truth.size else float("nan")


def confusion_matrix(
    truth: ArrayLike, prediction: ArrayLike, num_phases: int, *, ignore_index: int = IGNORE_INDEX
) -> Integers:
    """Count labelled frames: int64 (K, K), row = true phase, column = predicted phase.

    Raises UsageError where a label or a prediction of a labelled frame is outside [0, num_phases).

    >>> confusion_matrix([0, 0, 1, -100], [0, 1, 1, 0], 2)
    array([[1, 1],
           [0, 1]])
    """
    truth, prediction = checked_phases(truth, prediction, num_phases, ignore_index=ignore_index)
    counts = np.bincount(truth * num_phases + prediction, minlength=num_phases**2)
    return counts.reshape(num_phases, num_phases)


def phase_scores(
    truth: ArrayLike, prediction: ArrayLike, num_phases: int, *, ignore_index: int = IGNORE_INDEX
) -> PhaseScores:
    """Score every phase of one sequence; see the table at the top for what is undefined."""
    return scores_of_confusion(confusion_matrix(truth, prediction, num_phases, ignore_index=ignore_index))


def scores_of_confusion(confusion: Integers) -> PhaseScores:
    """Score every phase from a confusion matrix (K, K)."""
    right = np.diagonal(confusion)
    in_truth, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    return PhaseScores(
        precision=_divide(right, predicted),
        recall=_divide(right, in_truth),
        jaccard=_divide(right, in_truth + predicted - right),
        f1=_divide(2 * right, in_truth + predicted),
    )


def jaccard_per_phase(
    truth: ArrayLike, prediction: ArrayLike, num_phases: int, *, ignore_index: int = IGNORE_INDEX
) -> Floats:
    """Return intersection over union per phase, float64 (K,); nan for a phase in neither truth nor prediction.

    >>> jaccard_per_phase([0, 0, 1, 1], [0, 1, 1, 1], 3).round(3)
    array([0.5  , 0.667,   nan])
    """
    return phase_scores(truth, prediction, num_phases, ignore_index=ignore_index).jaccard


def balanced_accuracy(
    truth: ArrayLike, prediction: ArrayLike, num_phases: int, *, ignore_index: int = IGNORE_INDEX
) -> float:
    """Return the mean recall over the phases that occur in the truth; nan where no frame is labelled.

    >>> balanced_accuracy([0, 0, 0, 1], [0, 0, 0, 0], 2)
    0.5
    """
    return mean_of_defined(phase_scores(truth, prediction, num_phases, ignore_index=ignore_index).recall)


def mean_of_defined(values: Floats) -> float:
    """Return the mean of what is not nan, or nan if all is."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if defined.size else float("nan")


def labelled_frames(
    truth: ArrayLike, prediction: ArrayLike, ignore_index: int = IGNORE_INDEX
) -> tuple[Integers, Integers]:
    """Return the labelled frames of both as int64. Raises LengthMismatchError where they differ in length."""
    truth, prediction = _integers("truth", truth), _integers("prediction", prediction)
    if truth.shape != prediction.shape:
        raise LengthMismatchError(
            f"truth has {truth.size} frames and prediction {prediction.size}: expected one prediction per label"
        )
    labelled = truth != ignore_index
    return truth[labelled], prediction[labelled]


def checked_phases(
    truth: ArrayLike, prediction: ArrayLike, num_phases: int, *, ignore_index: int = IGNORE_INDEX
) -> tuple[Integers, Integers]:
    """Return the labelled frames of both as int64, all in [0, num_phases); UsageError where one is outside."""
    truth, prediction = labelled_frames(truth, prediction, ignore_index)
    for name, phases in (("truth", truth), ("prediction", prediction)):
        outside = (phases < 0) | (phases >= num_phases)
        if outside.any():
            raise UsageError(
                f"{name} holds phase {phases[outside][0]}: expected 0 to {num_phases - 1} ({num_phases} phases), "
                f"or {ignore_index} in the truth for frames without label"
            )
    return truth, prediction


def _integers(name: str, phases: ArrayLike) -> Integers:
    try:
        array = np.asarray(phases)
    except (ValueError, RuntimeError, TypeError) as error:  # a list of unlike things, or a tensor that is elsewhere
        raise UsageError(f"{name} is no array of integers, one per frame: {error}") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise UsageError(
            f"{name} is an array of {array.dtype} with shape {array.shape}: expected integers, one per frame"
        )
    return array.astype(np.int64)


def _divide(numerator: Integers, denominator: Integers) -> Floats:
    quotient = np.full(numerator.shape, np.nan)
    return np.divide(numerator, denominator, out=quotient, where=denominator > 0)
