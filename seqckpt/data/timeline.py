"""When each frame of a recording is shown, and which of them a sampled sequence takes.

Frame n of a sampled sequence is the frame shown at n / fps seconds, counted from when the first frame is shown, and
that is the last one that has begun by then, be the next one ever so near. Never "every 25th frame", since a recording
need not have 25 a second, nor a constant rate, nor start at 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqckpt.errors import DataError

__all__ = ["Timeline", "choose_frames", "find_constant_rate", "to_fraction"]


@dataclass(frozen=True)
class Timeline:
    """The frames of a recording, in the order in which they are shown.

    `stamps` int64 (K,), strictly rising, and `end`, when the last frame ends, are in units of `time_base` seconds.
    `path` is the video file, or the folder of images. `rate`: the frames a second that the stamps stand for, where they
    are rounded multiples of its frames' distance; None: the stamps themselves are all that is known.
    """

    path: Path
    stamps: NDArray[np.int64]
    end: int
    time_base: Fraction
    rate: Fraction | None = field(default=None, kw_only=True)

    @property
    def duration_seconds(self) -> float:
        return float((self.end - int(self.stamps[0])) * self.time_base)

    def seconds_at(self, number: int) -> float:
        """Return when frame `number` is shown, in seconds after the first one."""
        return float((int(self.stamps[number]) - int(self.stamps[0])) * self.time_base)


def choose_frames(timeline: Timeline, fps: float) -> NDArray[np.int64]:
    """Return which frame (its place, from 0) is shown at 0, 1 / fps, 2 / fps, ... seconds, as long as there are any.

    That is the last one that has begun: its time is not after the moment. Exact: in whole numbers, nothing is rounded.
    """
    since_start, length, unit = _measure(timeline)
    distance = 1 / (to_fraction(fps) * unit)
    moments = [n * distance.numerator // distance.denominator for n in range(math.ceil(length / distance))]
    return np.searchsorted(since_start, np.array(moments, np.int64), side="right") - 1


def find_constant_rate(
    stamps: NDArray[np.int64], time_base: Fraction, rates: Iterable[Fraction | None]
) -> Fraction | None:
    """Return the first of these rates (frames a second) that the stamps are those of, but for rounding; or None.

    Frames may be missing: each stamp must be a multiple of the frames' distance, rounded to a unit as the first one is.
    """
    for rate in rates:
        if rate is not None and rate > 0 and _count_frames(stamps - stamps[0], time_base * rate) is not None:
            return rate
    return None


def _measure(timeline: Timeline) -> tuple[NDArray[np.int64], Fraction, Fraction]:
    """Return when each frame begins and when the last one ends, after the first one begins, and the unit, in seconds.

    A container's unit may be too coarse for its rate: a 24 fps frame that belongs at 41.67 ms says 42 in a file that
    counts milliseconds, and would come too late at 24 samples a second. At a constant rate frames are the unit instead.
    """
    since_start, length = timeline.stamps - timeline.stamps[0], Fraction(timeline.end - int(timeline.stamps[0]))
    if timeline.rate is not None:
        per_unit = timeline.time_base * timeline.rate
        places = _count_frames(since_start, per_unit)
        if places is not None:
            end = length * per_unit
            is_rounded = abs(end - round(end)) <= 2 * per_unit  # first stamp, last stamp and last duration are
            return places, Fraction(round(end)) if is_rounded else end, 1 / timeline.rate
    return since_start, length, timeline.time_base


def _count_frames(since_start: NDArray[np.int64], per_unit: Fraction) -> NDArray[np.int64] | None:
    """Return times in units as whole numbers of frames, of which there are `per_unit` in one; None if they are none."""
    frames, units = per_unit.numerator, per_unit.denominator
    if (int(since_start[-1]) + 1) * frames >= 1 << 61 or units >= 1 << 61:
        return None  # more than fits into 64 bits: no rate that anybody meant
    places = (2 * since_start * frames + units) // (2 * units)
    largest = frames - frames % 2  # of the differences, in parts of a unit, that two rounded stamps can make
    fits = np.abs(since_start * frames - places * units) <= largest
    return places if fits.all() and (np.diff(places) > 0).all() else None


def to_fraction(fps: float) -> Fraction:
    """Return a frame rate as the fraction that is meant: 29.97 as 2997 / 100. Raises DataError if it is no rate."""
    if not (math.isfinite(fps) and 0 < fps <= 1000):
        raise DataError(f"fps is {fps}; expected a number above 0, at most 1000")
    return Fraction(fps).limit_denominator(100_000)
