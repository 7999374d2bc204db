"""When each frame of a recording is shown, and which of them a sampled sequence takes.

Frame n of a sampled sequence is the frame shown at n / fps seconds, counted from when the first frame is shown: never
"every 25th frame", since a recording need not have 25 a second, nor a constant rate, nor start at 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqckpt.errors import DataError

__all__ = ["Timeline", "choose_frames", "to_fraction"]


@dataclass(frozen=True)
class Timeline:
    """The frames of a recording, in the order in which they are shown.

    `stamps` int64 (K,), strictly rising, and `end`, when the last frame ends, are in units of `time_base` seconds.
    `path` is the video file, or the folder of images.
    """

    path: Path
    stamps: NDArray[np.int64]
    end: int
    time_base: Fraction

    @property
    def duration_seconds(self) -> float:
        return float((self.end - int(self.stamps[0])) * self.time_base)

    def seconds_at(self, number: int) -> float:
        """Return when frame `number` is shown, in seconds after the first one."""
        return float((int(self.stamps[number]) - int(self.stamps[0])) * self.time_base)


def choose_frames(timeline: Timeline, fps: float) -> NDArray[np.int64]:
    """Return which frame (its place, from 0) is shown at 0, 1 / fps, 2 / fps, ... seconds, as long as there are any.

    Exact: in whole numbers. Time stamps are rounded to the container's unit (a 24 fps frame that belongs at 41.67 ms
    says 42 in a file that counts milliseconds), hence so are the moments that they are compared with.
    """
    distance = 1 / (to_fraction(fps) * timeline.time_base)
    length = timeline.end - int(timeline.stamps[0])
    num_samples = math.ceil((length + 1) / distance)
    moments = [
        (2 * n * distance.numerator + distance.denominator) // (2 * distance.denominator) for n in range(num_samples)
    ]
    inside = [moment for moment in moments if moment < length]
    since_start = timeline.stamps - timeline.stamps[0]
    return np.searchsorted(since_start, np.array(inside, np.int64), side="right") - 1


def to_fraction(fps: float) -> Fraction:
    """Return a frame rate as the fraction that is meant: 29.97 as 2997 / 100. Raises DataError if it is no rate."""
    if not (math.isfinite(fps) and 0 < fps <= 1000):
        raise DataError(f"fps is {fps}; expected a number above 0, at most 1000")
    return Fraction(fps).limit_denominator(100_000)
