"""What only the pictures of a recording tell: which frames cannot be decoded, and black borders."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqckpt.data.frame_cache import Stopped
from seqckpt.data.recording import read_recording
from seqckpt.data.timeline import Timeline

__all__ = ["Pictures", "look_at_all", "look_at_some"]

_SIDE = 128  # pixels that pictures are looked at with
_BLACK = 16  # of 255: compressed black is not quite 0
_NUM_LOOKS = 9


@dataclass(frozen=True)
class Pictures:
    """What was seen: frames that were decoded, those that could not be, and how much of each side is always black.

    `damaged` are places of frames (from 0), `borders` shares (0..1) of height or width at the top, bottom, left and
    right.
    """

    num_decoded: int
    damaged: tuple[int, ...]
    borders: tuple[float, float, float, float]

    def damaged_stretches(self) -> list[tuple[int, int]]:
        """Return first and last frame of each stretch of damaged ones."""
        return [(stretch[0], stretch[-1]) for stretch in _group(self.damaged)]

    def crop_filter(self) -> str | None:
        """Return FFmpeg's filter that cuts the black borders off; None where there are none worth it (2 % or more)."""
        top, bottom, left, right = self.borders
        if max(self.borders) < 0.02 or top + bottom >= 1:
            return None
        return f"crop=iw*{1 - left - right:.4g}:ih*{1 - top - bottom:.4g}:iw*{left:.4g}:ih*{top:.4g}"


def look_at_some(timeline: Timeline, *, stop: threading.Event | None = None) -> Pictures:
    """Decode a few frames, spread over the recording; the rest is as in look_at_all."""
    num_frames = len(timeline.stamps)
    places = np.unique(np.linspace(0, num_frames - 1, min(_NUM_LOOKS, num_frames)).astype(np.int64))
    return _look(timeline, places, stop or threading.Event())


def look_at_all(timeline: Timeline, *, stop: threading.Event | None = None) -> Pictures:
    """Decode every frame, which takes as long as it takes; one that cannot be decoded is counted.

    Raises Stopped soon after another thread has set `stop`.
    """
    return _look(timeline, np.arange(len(timeline.stamps)), stop or threading.Event())


def _look(timeline: Timeline, places: NDArray[np.int64], stop: threading.Event) -> Pictures:
    damaged: list[int] = []
    brightest = np.zeros((_SIDE, _SIDE), np.uint8)
    black = np.zeros((3, _SIDE, _SIDE), np.uint8)  # stands in for what is damaged at the start
    for row in read_recording(timeline, places, image_size=(_SIDE, _SIDE), damaged=damaged, before=lambda: black):
        if stop.is_set():
            raise Stopped
        np.maximum(brightest, row.max(0), out=brightest)
    return Pictures(len(places) - len(damaged), tuple(places[damaged].tolist()), _measure_borders(brightest))


def _measure_borders(brightest: NDArray[np.uint8]) -> tuple[float, float, float, float]:
    """Return the shares of rows and columns at the edges in which nothing was ever brighter than black."""
    rows, columns = brightest.max(1) > _BLACK, brightest.max(0) > _BLACK
    if not rows.any():
        return 0.0, 0.0, 0.0, 0.0  # all black: nothing to crop to
    top, left = int(rows.argmax()), int(columns.argmax())
    bottom, right = int(rows[::-1].argmax()), int(columns[::-1].argmax())
    return top / _SIDE, bottom / _SIDE, left / _SIDE, right / _SIDE


def _group(places: Sequence[int]) -> Iterator[list[int]]:
    stretch: list[int] = []
    for place in places:
        if stretch and place != stretch[-1] + 1:
            yield stretch
            stretch = []
        stretch.append(place)
    if stretch:
        yield stretch
