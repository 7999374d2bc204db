"""Stretches of frames: those of one phase, and those in which a prediction is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqckpt.training import VideoPrediction

__all__ = ["Stretch", "find_stretches", "find_wrong_stretches", "frame_seconds"]


@dataclass(frozen=True)
class Stretch:
    """Wrong frames in a row: `start` to `stop` (exclusive) of the video with that place in the list of videos.

    `truth` and `phase` are the two phases confused in most of its frames, of `num_pairs` such pairs;
    `probability` is the mean probability of what was predicted.
    """

    video: int
    start: int
    stop: int
    start_second: float
    stop_second: float
    truth: int
    phase: int
    num_pairs: int
    probability: float

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.stop_second - self.start_second


def find_stretches(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first frames of the stretches of one value, and their ends (exclusive).

    >>> find_stretches(np.array([3, 3, 1, 1, 1]))
    (array([0, 2]), array([2, 5]))
    """
    starts = np.append(0, np.flatnonzero(np.diff(values)) + 1) if len(values) else np.zeros(0, np.int64)
    return starts, np.append(starts[1:], len(values)) if len(values) else starts


def find_wrong_stretches(predictions: Sequence[VideoPrediction], *, most: int) -> list[Stretch]:
    """Return the longest stretches of wrong frames of all videos, the longest first; frames without label end one."""
    found = []
    for video, entry in enumerate(predictions):
        wrong = (entry.truth >= 0) & (entry.truth != entry.prediction)
        each = frame_seconds(entry)
        starts, stops = find_stretches(wrong.astype(np.int64))
        found += [
            (float(stop - start) * each, video, int(start), int(stop))
            for start, stop in zip(starts, stops, strict=True)
            if wrong[start]
        ]
    found.sort(key=lambda entry: (-entry[0], *entry[1:]))
    return [_describe(predictions[video], video, start, stop) for _, video, start, stop in found[:most]]


def frame_seconds(prediction: VideoPrediction) -> float:
    """Return how long a frame of this video stands for; 1 where there is but one."""
    return float(np.median(np.diff(prediction.seconds))) if len(prediction.seconds) > 1 else 1.0


def _describe(entry: VideoPrediction, video: int, start: int, stop: int) -> Stretch:
    guesses = entry.prediction[start:stop]
    pairs = Counter(zip(entry.truth[start:stop].tolist(), guesses.tolist(), strict=True))
    (truth, phase), _ = pairs.most_common(1)[0]
    return Stretch(
        video=video,
        start=start,
        stop=stop,
        start_second=float(entry.seconds[start]),
        stop_second=float(entry.seconds[stop - 1]) + frame_seconds(entry),
        truth=truth,
        phase=phase,
        num_pairs=len(pairs),
        probability=float(entry.probabilities[np.arange(start, stop), guesses].mean()),
    )
