"""Labels over time: rows of a table and intervals, laid out as stretches with one label each.

A position on a track is counted either in frames of the video (`rate` None: the k-th frame shown is at k) or in
units of which there are `rate` a second (1: seconds; 1000: milliseconds; 25: frames of a recording at 25 fps).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqckpt.data.annotations import Row
from seqckpt.data.labels import Labels
from seqckpt.data.videos import IGNORE_INDEX

__all__ = ["Interval", "LabelTrack", "lay_out_intervals", "lay_out_rows"]


@dataclass(frozen=True, eq=False)
class LabelTrack:
    """Stretches [start, end) in rising order, which do not overlap, with a label each.

    Args:
        path: the file that they are from.
        starts, ends: float64 (R,), positions; see the top of this file.
        values: int64 (R,) or, for several labels at once, (R, columns).
        rate: units a second; None: frames of the video.
        step: the distance of rows: by less than that, the end may miss the video's end unremarked.
        is_complete: a label for the whole video is promised, so that its length tells whether it is this video's.
        num_rows: rows of the file.
        empty_lines: lines of intervals that end where they begin: no frame has their label.
    """

    path: Path
    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    values: NDArray[np.int64]
    rate: Fraction | None
    step: float
    is_complete: bool
    num_rows: int
    empty_lines: tuple[int, ...] = ()

    @property
    def end(self) -> float:
        """The position at which the last stretch ends, infinite where one row is for all."""
        return float(self.ends[-1]) if len(self.ends) else 0.0

    def at(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Return the label at each position, (N,) or (N, columns); IGNORE_INDEX where there is none."""
        places = np.asarray(positions, np.float64)
        labels = np.full((len(places), *self.values.shape[1:]), IGNORE_INDEX, np.int64)
        if len(self.starts):
            rows = np.searchsorted(self.starts, places, side="right") - 1
            inside = (rows >= 0) & (places < self.ends[rows])
            labels[inside] = self.values[rows[inside]]
        return labels


@dataclass(frozen=True)
class Interval:
    """A label from `start` to `end` (exclusive), and the row that says so."""

    start: float
    end: float
    label: int
    row: Row


def lay_out_rows(
    path: Path, values: ArrayLike, *, step: int | None = 1, rate: Fraction | int | None = None
) -> LabelTrack:
    """Lay out rows that stand for `step` units each, from 0 on, the next one beginning where one ends.

    `values`: (R,) or (R, columns), R at least 1. `step` None: the one row is for the whole video.
    """
    labels = np.asarray(values, np.int64)
    columns = labels.reshape(len(labels), math.prod(labels.shape[1:]))
    changes = (columns[1:] != columns[:-1]).any(1)
    first = np.concatenate([[0], np.flatnonzero(changes) + 1])
    bounds = np.append(first, len(labels)) * float(step or 1)
    if step is None:
        bounds[-1] = math.inf
    return LabelTrack(
        path=path,
        starts=bounds[:-1],
        ends=bounds[1:],
        values=labels[first],
        rate=None if rate is None else Fraction(rate),
        step=float(step or 1),
        is_complete=True,
        num_rows=len(labels),
    )


def lay_out_intervals(
    path: Path, intervals: Iterable[Interval], *, labels: Labels, rate: Fraction | int | None
) -> LabelTrack:
    """Lay out intervals, given in any order; where they leave gaps there is no label.

    Where intervals of different labels overlap, the one that stands first in `labels.priority` wins.
    An interval that ends where it begins labels nothing, and overlaps with nothing: its line is noted in `empty_lines`.
    Raises DataError, with file and line, where an interval ends before it begins, or where of two that overlap one is
    not in the priority.
    """
    given = list(intervals)
    for interval in given:
        if not interval.start <= interval.end:
            raise interval.row.error(
                f"the interval is from {interval.start:.10g} to {interval.end:.10g}; expected an end that is not "
                "before its start"
            )
    filled = [interval for interval in given if interval.start < interval.end]
    ordered = sorted(filled, key=lambda interval: (interval.start, interval.end, interval.row.line))
    bounds = sorted({place for interval in ordered for place in (interval.start, interval.end)})
    stretches: list[tuple[float, float, int]] = []
    active: list[Interval] = []
    position = 0
    for start, end in itertools.pairwise(bounds):
        active = [interval for interval in active if interval.end > start]
        while position < len(ordered) and ordered[position].start <= start:
            active.append(ordered[position])
            position += 1
        if active:
            stretches.append((start, end, _choose(active, labels)))
    columns = np.array(stretches, np.float64).reshape(-1, 3).T
    return LabelTrack(
        path=path,
        starts=columns[0],
        ends=columns[1],
        values=columns[2].astype(np.int64),
        rate=None if rate is None else Fraction(rate),
        step=1.0 if rate is None else float(rate),
        is_complete=False,
        num_rows=len(given),
        empty_lines=tuple(sorted(interval.row.line for interval in given if interval.start == interval.end)),
    )


def _choose(active: Sequence[Interval], labels: Labels) -> int:
    """Return the label that holds where these intervals overlap."""
    chosen = active[0]
    for other in active[1:]:
        if other.label == chosen.label:
            continue
        ranks = labels.rank(chosen.label), labels.rank(other.label)
        if None in ranks:
            first, second = sorted((chosen, other), key=lambda interval: interval.row.line)
            raise second.row.error(
                f"{_name(second, labels)}, {second.start:g} to {second.end:g}, overlaps {_name(first, labels)}, "
                f"{first.start:g} to {first.end:g}, of line {first.row.line}; expected no overlap, or both in "
                "data.overlap_priority"
            )
        chosen = min(chosen, other, key=lambda interval: labels.rank(interval.label) or 0)
    return chosen.label


def _name(interval: Interval, labels: Labels) -> str:
    return labels.names[interval.label] if interval.label >= 0 else "a stretch without a label"
