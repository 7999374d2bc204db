"""Scores of segments, as temporal action segmentation computes them: the protocol `segmental`, in percent.

Edit score: (1 - Levenshtein distance / longer one) * 100 between the sequences of true and predicted segments, per
video, then averaged. F1@k: each predicted segment in turn takes the true one of its phase that it overlaps best (in
intersection over union); if that overlap is k % or more and no earlier one has taken it, it is a hit. Hits, surplus
predictions and misses are added up over all videos, and F1 = 200 hits / (2 hits + surplus + misses).

Background phases (none unless given) are left out of both; what they part stays parted. Segments of the truth that were
not predicted at all give 0. Where there is no segment in either, nothing is there to be scored: the edit score is nan
and left out of the mean; such a video adds nothing to the counts of F1, which is nan where all counts are 0.

Frames without label are taken out first: a gap in the middle of a segment does not cut it in two, and overlaps count
labelled frames only.

Compared, by reading, with eval.py of the repository ms-tcn (after metrics.py of TemporalConvolutionalNetworks): the
same matching and the same sums. That script fails where a video has no true segment, and divides by 0 in the edit score
where it has none of either.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqckpt.errors import UsageError
from seqckpt.metrics.frame import IGNORE_INDEX, Floats, Integers, labelled_frames, mean_of_defined
from seqckpt.metrics.measure import plain, std_of_defined
from seqckpt.metrics.protocols import check_videos
from seqckpt.metrics.segments import Segments, find_segments

__all__ = ["OVERLAPS", "SegmentalScores", "edit_score", "segment_counts", "segmental_scores"]

OVERLAPS = (10, 25, 50)


@dataclass(frozen=True)
class SegmentalScores:
    """Scores under the protocol `segmental`, in percent; `f1` by the least overlap, in percent.

    `f1_counts` are (hits, surplus, misses) over all videos. nan where undefined.
    """

    protocol: str
    background: tuple[int, ...]
    num_videos: int
    edit_mean: float
    edit_std_over_videos: float
    edit_per_video: Floats
    f1: dict[int, float]
    f1_counts: dict[int, tuple[int, int, int]]
    f1_per_video: dict[int, Floats]

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and lists for JSON, undefined values as None; overlaps are keys of text."""
        return plain(
            {
                name: {str(overlap): entry for overlap, entry in value.items()} if isinstance(value, dict) else value
                for name, value in vars(self).items()
            }
        )


def segmental_scores(
    truths: Sequence[ArrayLike],
    predictions: Sequence[ArrayLike],
    *,
    background: Collection[int] = (),
    overlaps: Sequence[int] = OVERLAPS,
    ignore_index: int = IGNORE_INDEX,
) -> SegmentalScores:
    """Score the segments of videos: one integer array per video in `truths` and `predictions`.

    >>> scores = segmental_scores([[0, 0, 1, 1, 1, 1]], [[0, 0, 0, 0, 1, 1]])
    >>> scores.edit_mean, scores.f1
    (100.0, {10: 100.0, 25: 100.0, 50: 100.0})
    """
    check_videos(truths, predictions)
    pairs = list(zip(truths, predictions, strict=True))
    options: dict[str, Any] = {"background": background, "ignore_index": ignore_index}
    edits = np.array([edit_score(*pair, **options) for pair in pairs])
    counts = {k: np.array([segment_counts(*pair, overlap=k, **options) for pair in pairs]) for k in overlaps}
    totals = {k: of_videos.sum(axis=0) for k, of_videos in counts.items()}
    return SegmentalScores(
        protocol="segmental",
        background=tuple(background),
        num_videos=len(pairs),
        edit_mean=mean_of_defined(edits),
        edit_std_over_videos=std_of_defined(edits),
        edit_per_video=edits,
        f1={k: _f1(total) for k, total in totals.items()},
        f1_counts={k: (int(total[0]), int(total[1]), int(total[2])) for k, total in totals.items()},
        f1_per_video={k: np.array([_f1(row) for row in of_videos]) for k, of_videos in counts.items()},
    )


def edit_score(
    truth: ArrayLike, prediction: ArrayLike, *, background: Collection[int] = (), ignore_index: int = IGNORE_INDEX
) -> float:
    """Return how alike the order of segments is, in percent; nan where there is no segment in either.

    >>> edit_score([0, 0, 1, 1, 2], [0, 1, 0, 1, 2])
    60.0
    """
    true, guessed = _find_both(truth, prediction, background, ignore_index)
    longer = max(len(true), len(guessed))
    return (1 - _levenshtein(true.phases, guessed.phases) / longer) * 100 if longer else float("nan")


def segment_counts(
    truth: ArrayLike,
    prediction: ArrayLike,
    *,
    overlap: int,
    background: Collection[int] = (),
    ignore_index: int = IGNORE_INDEX,
) -> tuple[int, int, int]:
    """Return (hits, surplus, misses) of one video's segments at a least overlap in percent.

    >>> segment_counts([0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 1], overlap=50)
    (1, 1, 2)
    """
    if not 0 < overlap <= 100:
        raise UsageError(f"an overlap of {overlap} %: expected more than 0 and at most 100")
    true, guessed = _find_both(truth, prediction, background, ignore_index)
    taken = np.zeros(len(true), bool)
    for phase, start, stop in zip(guessed.phases, guessed.starts, guessed.stops, strict=True):
        common = np.minimum(stop, true.stops) - np.maximum(start, true.starts)
        common = np.where(true.phases == phase, common.clip(min=0), 0)
        union = (stop - start) + (true.stops - true.starts) - common
        if not common.any():
            continue
        best = int((common / union).argmax())
        if common[best] * 100 >= overlap * union[best]:
            taken[best] = True
    hits = int(taken.sum())
    return hits, len(guessed) - hits, len(true) - hits


def _find_both(
    truth: ArrayLike, prediction: ArrayLike, background: Collection[int], ignore_index: int
) -> tuple[Segments, Segments]:
    truth, prediction = labelled_frames(truth, prediction, ignore_index)
    return find_segments(truth, background), find_segments(prediction, background)


def _levenshtein(one: Integers, other: Integers) -> int:
    """Return the least number of insertions, deletions and substitutions that turn one into the other.

    Row by row of the usual table; what depends on the cell to the left is a running minimum of (cell - column).
    """
    columns = np.arange(len(other) + 1)
    row = columns.copy()
    for entry in one:
        above = row + 1
        above[1:] = np.minimum(above[1:], row[:-1] + (other != entry))
        row = np.minimum.accumulate(above - columns) + columns
    return int(row[-1])


def _f1(counts: NDArray[Any]) -> float:
    hits, surplus, misses = (int(count) for count in counts)
    total = 2 * hits + surplus + misses
    return 200 * hits / total if total else float("nan")
