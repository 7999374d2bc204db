"""Clips: the stretches of videos that one loss is computed over."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from seqckpt.data.frame_source import FrameSource, Stretch
from seqckpt.data.videos import Video
from seqckpt.errors import DataError

__all__ = ["Clip", "cut_clips"]


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames `start` to `stop` (exclusive) of a video.

    `source`, where given, is what these frames are read from instead of the video: augmented, prefetched, or loaded
    into memory. `lane` is the row of the batch that the clip is read in, where videos are read in order.
    """

    video: Video
    start: int
    stop: int
    source: FrameSource | None = None
    lane: int | None = None

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def frames(self) -> FrameSource:
        """The clip's frames, uint8 (C, H, W) each, read when sliced."""
        return Stretch(self.video.frames, self.start, self.stop) if self.source is None else self.source

    @property
    def targets(self) -> Tensor:
        """The phases, int64 (len(clip),)."""
        return self.video.phases[self.start : self.stop]

    @property
    def resets(self) -> bool:
        """Whether a video begins here, so that no state is carried into this clip."""
        return self.start == 0

    def read_from(self, source: FrameSource) -> Clip:
        """Return the same clip with its frames read from `source`, which has as many."""
        return dataclasses.replace(self, source=source)

    def load(self) -> Clip:
        """Return the same clip with its frames in memory, uint8 (len(clip), C, H, W)."""
        return self.read_from(self.frames[0 : len(self)])


def cut_clips(videos: Iterable[Video], clip_length: int | None) -> list[Clip]:
    """Cut videos into clips of `clip_length` frames, in order; None: one clip per video.

    A video's last clip is shorter where the length does not divide; no frame is dropped, and none is in two clips.
    """
    if clip_length is not None and clip_length < 1:
        raise DataError(f"clip_length is {clip_length}; expected 1 frame or more")
    clips = []
    for video in videos:
        length = clip_length or max(1, len(video))
        clips += [Clip(video, start, min(start + length, len(video))) for start in range(0, len(video), length)]
    return clips
