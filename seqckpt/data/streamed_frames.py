"""Frames decoded when they are asked for: a FrameSource for recordings that are not to be cached.

Reading on from where the last read ended goes on with the same decoder; anything else opens the recording anew, from
the key frame before. So a forward pass in chunks decodes as one pass over the file, and a backward one pays for the
frames between a key frame and the chunk again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqckpt.data.frame_cache import SampledVideo
from seqckpt.data.frame_source import span_of
from seqckpt.data.recording import index_recording, number_frames, read_recording
from seqckpt.data.timeline import Timeline, choose_frames

__all__ = ["StreamedFrames", "stream_video"]

_log = logging.getLogger(__name__)

# Decoders that a forked process has from its parent. They share the place in the file with the parent's, so they are
# not used; nor are they freed, which can wait for ever for threads that exist in the parent alone.
_inherited: list[Iterator[NDArray[np.uint8]]] = []


class StreamedFrames:
    """The frames at some places of a recording: `source[a:b]` decodes them, uint8 (b - a, 3, height, width).

    A damaged frame is a DataError when it is read, or with corrupt="repeat" the last good one once more (said in the
    log). Memory: the decoder's, and the slice. Safe in several threads, which wait for each other; can be sent to other
    processes, which open the file for themselves.
    """

    def __init__(
        self, timeline: Timeline, places: NDArray[np.int64], *, image_size: tuple[int, int], corrupt: str = "error"
    ) -> None:
        self.timeline, self.places, self.image_size, self.corrupt = timeline, places, image_size, corrupt
        self._damaged: set[int] = set()
        self._prepare()

    def _prepare(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._reader: Iterator[NDArray[np.uint8]] = iter(())
        self._position = -1

    def __len__(self) -> int:
        return len(self.places)

    def __repr__(self) -> str:
        return f"StreamedFrames({str(self.timeline.path)!r}, {len(self)} frames of {self.image_size})"

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_lock", "_reader")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def __getitem__(self, index: slice) -> Tensor:
        start, stop = span_of(index, len(self))
        frames = torch.empty((stop - start, 3, *self.image_size), dtype=torch.uint8)
        if os.getpid() != self._process:
            _inherited.append(self._reader)
            self._prepare()
        with self._lock:
            if start != self._position:
                self._reader = self._read_from(start)
            self._position = -1  # should an error come now, the reader is of no use
            for frame, row in zip(frames.numpy(), islice(self._reader, stop - start), strict=True):
                frame[...] = row
            self._position = stop
        return frames

    def _read_from(self, start: int) -> Iterator[NDArray[np.uint8]]:
        def before() -> NDArray[np.uint8] | None:
            return next(self._read_from(start - 1)) if start else None

        damaged: list[int] = []
        rows = read_recording(
            self.timeline,
            self.places[start:],
            image_size=self.image_size,
            damaged=damaged if self.corrupt == "repeat" else None,
            before=before,
        )
        for row in rows:
            new = {start + k for k in damaged} - self._damaged
            damaged.clear()
            if new:
                self._damaged |= new
                seconds = self.timeline.seconds_at(int(self.places[min(new)]))
                _log.warning("%s is damaged at %.2f s: the last good frame stands in", self.timeline.path, seconds)
            yield row


def stream_video(
    path: Path,
    *,
    fps: float,
    image_size: tuple[int, int],
    frame_rate: float | None = None,
    corrupt: str = "error",
) -> SampledVideo:
    """Return a recording's sampled frames without decoding any; the arguments are those of `cache_video`.

    Raises DataError where the recording cannot be opened.
    """
    timeline = index_recording(path, frame_rate=frame_rate)
    places = choose_frames(timeline, fps)
    numbers, num_frames = number_frames(timeline, places)
    frames = StreamedFrames(timeline, places, image_size=image_size, corrupt=corrupt)
    return SampledVideo(frames, numbers, num_frames, timeline.duration_seconds)
