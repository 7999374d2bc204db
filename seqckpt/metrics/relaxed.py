"""Scores that forgive phases which begin or end a little early or late: the protocols `relaxed` and `relaxed-matlab`.

The rule is that of the M2CAI challenge, which most papers on Cholec80 report. Around every segment of the truth there
are two windows, the first and the last seconds of it (the whole segment, where that is shorter). In the first, a
prediction that lags behind by one phase counts as right; in the last, one that leads by one phase. Some phases forgive
two, since phases may be skipped there: see `Neighbours`. Per video and phase that occurs in its truth, with TP the
right or forgiven frames within the union of the phase's truth and prediction:

    Jaccard TP/union    precision TP/predicted    recall TP/truth

A forgiven frame may count for two phases, so that precision and recall can pass 1: they are cut to 1, also where a
phase was never predicted but forgiven (in the script: Inf, cut to 100). Where it was neither, precision is nan. A phase
that is absent from a video's truth but predicted there counts as precision 0 and Jaccard 0, as in `video`, unless every
frame of it is forgiven: then it is left out. Means and spreads over videos and phases are those of `video`. So a
tolerance of 0 gives the very values of `video`.

`relaxed` is this rule. `relaxed-matlab` is the published script, which differs in two ways. An index fault: its mask
for the last window of a segment is laid on the segment's first frames, so that early transitions are not forgiven, but
as many frames at the start are, whatever was predicted there. And a phase that is absent from a video's truth is left
out of that video, however often it was predicted. Compared, by reading, with Evaluate.m and Main.m of the repository
TMRNet (7 phases of Cholec80) and its variant of Evaluate.m for M2CAI's 8 phases; and in numbers with a line-by-line
rendering of the first, on the public predictions of 40 videos that an early commit of that repository holds: all means
and spreads agree to 1e-12. The script itself was not run, for want of MATLAB. It gives nan for the mean over phases
where a phase is in no video's truth; here such a phase is left out.

The windows are given in seconds and counted in frames of the *sampled* sequence, rounded down. Frames without label are
taken out first: what they part is joined where it is the same phase, and windows count labelled frames only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqckpt.errors import UsageError
from seqckpt.metrics.frame import IGNORE_INDEX, Floats, Integers, checked_phases, mean_of_defined
from seqckpt.metrics.measure import Measure, average, plain, std_of_defined
from seqckpt.metrics.protocols import check_videos
from seqckpt.metrics.segments import find_segments

__all__ = [
    "CHOLEC80",
    "M2CAI16",
    "TOLERANCE_SECONDS",
    "Neighbours",
    "RelaxedScores",
    "choose_neighbours",
    "relaxed_scores",
]

TOLERANCE_SECONDS = 10.0


@dataclass(frozen=True)
class Neighbours:
    """How many phases a prediction may lag behind at the start of each phase, and lead at its end."""

    name: str
    lag: tuple[int, ...]
    lead: tuple[int, ...]

    @classmethod
    def one(cls, num_phases: int) -> Neighbours:
        """Return the rule without exceptions: one phase each way."""
        return cls("one", lag=(1,) * num_phases, lead=(1,) * num_phases)


# The last two phases may follow the one before the last; from gallbladder dissection on, one may be skipped.
CHOLEC80 = Neighbours("cholec80", lag=(1, 1, 1, 1, 1, 2, 2), lead=(1, 1, 1, 2, 2, 2, 2))
M2CAI16 = Neighbours("m2cai16", lag=(1, 1, 1, 1, 1, 1, 2, 2), lead=(1, 1, 1, 1, 2, 2, 2, 2))


@dataclass(frozen=True)
class RelaxedScores:
    """Scores under `relaxed` or `relaxed-matlab`, all in [0, 1]; nan where undefined."""

    protocol: str
    tolerance_seconds: float
    fps: float
    window_frames: int
    neighbours: Neighbours
    num_videos: int
    num_frames: int
    accuracy_mean: float
    accuracy_std_over_videos: float
    accuracy_per_video: Floats
    precision: Measure
    recall: Measure
    jaccard: Measure

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and lists for JSON, undefined values as None."""
        return plain(self)


def choose_neighbours(num_phases: int) -> Neighbours:
    """Return Cholec80's rule for 7 phases, M2CAI16's for 8, and for others one neighbour each way.

    The exceptions are about the last phases of these two: for other sets of 7 or 8 phases pass `Neighbours.one`.
    """
    return {7: CHOLEC80, 8: M2CAI16}.get(num_phases, Neighbours.one(num_phases))


def relaxed_scores(
    truths: Sequence[ArrayLike],
    predictions: Sequence[ArrayLike],
    num_phases: int,
    *,
    fps: float,
    tolerance_seconds: float = TOLERANCE_SECONDS,
    neighbours: Neighbours | None = None,
    as_matlab: bool = False,
    ignore_index: int = IGNORE_INDEX,
) -> RelaxedScores:
    """Score videos with windows of `tolerance_seconds`: one integer array per video in `truths` and `predictions`.

    `fps` is the rate of these frames, not of the video that they were sampled from. `neighbours` None: see
    `choose_neighbours`. `as_matlab`: the protocol `relaxed-matlab`, fault and all.

    >>> scores = relaxed_scores([[0] * 5 + [1] * 5], [[0] * 7 + [1] * 3], 2, fps=1, tolerance_seconds=2)
    >>> scores.protocol, scores.accuracy_mean, scores.jaccard.per_phase.round(3)
    ('relaxed', 1.0, array([1., 1.]))
    """
    window = count_window_frames(tolerance_seconds, fps)
    neighbours = choose_neighbours(num_phases) if neighbours is None else neighbours
    if not len(neighbours.lag) == len(neighbours.lead) == num_phases:
        raise UsageError(f"neighbours {neighbours.name!r} are for {len(neighbours.lag)} phases: expected {num_phases}")
    check_videos(truths, predictions)
    pairs = [
        checked_phases(truth, guess, num_phases, ignore_index=ignore_index)
        for truth, guess in zip(truths, predictions, strict=True)
    ]
    rights = [_find_right(*pair, window, neighbours, as_matlab=as_matlab) for pair in pairs]
    accuracies = np.array([float(right.mean()) if right.size else math.nan for right in rights])
    scored = [_score(*pair, right, num_phases, as_matlab=as_matlab) for pair, right in zip(pairs, rights, strict=True)]
    precision, recall, jaccard = (average(np.stack(rows)) for rows in zip(*scored, strict=True))
    return RelaxedScores(
        protocol="relaxed-matlab" if as_matlab else "relaxed",
        tolerance_seconds=float(tolerance_seconds),
        fps=float(fps),
        window_frames=window,
        neighbours=neighbours,
        num_videos=len(pairs),
        num_frames=sum(right.size for right in rights),
        accuracy_mean=mean_of_defined(accuracies),
        accuracy_std_over_videos=std_of_defined(accuracies),
        accuracy_per_video=accuracies,
        precision=precision,
        recall=recall,
        jaccard=jaccard,
    )


def count_window_frames(tolerance_seconds: float, fps: float) -> int:
    """Return how many frames a window holds, rounded down; UsageError for what is no time or no rate."""
    if not (math.isfinite(fps) and fps > 0):
        raise UsageError(f"fps={fps}: expected the sampled frames per second, a number above 0")
    if not (math.isfinite(tolerance_seconds) and tolerance_seconds >= 0):
        raise UsageError(f"a tolerance of {tolerance_seconds} seconds: expected a number from 0")
    return math.floor(tolerance_seconds * fps + 1e-9)  # 0.3 s at 10 fps are 3 frames, whatever floats say


def _find_right(
    truth: Integers, prediction: Integers, window: int, neighbours: Neighbours, *, as_matlab: bool
) -> NDArray[np.bool_]:
    """Return for each frame whether it is right or forgiven."""
    difference = prediction - truth
    right = difference == 0
    segments = find_segments(truth)
    for phase, start, stop in zip(segments.phases, segments.starts, segments.stops, strict=True):
        width = min(window, stop - start)
        first, last = difference[start : start + width], difference[stop - width : stop]
        late = (first < 0) & (first >= -neighbours.lag[phase])
        early = (last > 0) & (last <= neighbours.lead[phase])
        right[start : start + width] |= late
        if as_matlab:
            right[start : start + width] |= early  # the script's fault, which its numbers have
        else:
            right[stop - width : stop] |= early
    return right


def _score(
    truth: Integers, prediction: Integers, right: NDArray[np.bool_], num_phases: int, *, as_matlab: bool
) -> tuple[Floats, Floats, Floats]:
    """Return precision, recall and Jaccard per phase, (K,) each; nan where undefined or left out."""
    scores = np.full((3, num_phases), np.nan)
    for phase in np.unique(truth):
        in_truth, predicted = truth == phase, prediction == phase
        union = in_truth | predicted
        hits, num_predicted = int(right[union].sum()), int(predicted.sum())
        if num_predicted or hits:
            scores[0, phase] = min(1.0, hits / num_predicted) if num_predicted else 1.0
        scores[1, phase] = min(1.0, hits / int(in_truth.sum()))
        scores[2, phase] = hits / int(union.sum())
    if not as_matlab:
        only_predicted = np.setdiff1d(prediction[~right], truth)
        scores[0, only_predicted] = scores[2, only_predicted] = 0.0
    return scores[0], scores[1], scores[2]
