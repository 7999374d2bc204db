"""Clips: the stretches of videos that one loss is computed over, and the order in which training reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from seqckpt.data.videos import FrameSource, Video
from seqckpt.errors import DataError

__all__ = ["Clip", "clip_loader", "cut_clips"]


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames `start` to `stop` (exclusive) of a video. `loaded`, where given, are these frames in memory."""

    video: Video
    start: int
    stop: int
    loaded: Tensor | None = None

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def frames(self) -> FrameSource:
        """The clip's frames, a FrameSource: read from the video when sliced, or the tensor where they are loaded."""
        return _Part(self.video.frames, self.start, self.stop) if self.loaded is None else self.loaded

    @property
    def targets(self) -> Tensor:
        """The phases, int64 (len(clip),)."""
        return self.video.phases[self.start : self.stop]

    def load(self) -> Clip:
        """Return the same clip with its frames in memory, uint8 (len(clip), C, H, W)."""
        return dataclasses.replace(self, loaded=self.frames[0 : len(self)])


@dataclass(frozen=True)
class _Part:
    """A stretch of a FrameSource."""

    source: FrameSource
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: slice) -> Tensor:
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise ValueError(f"frames are read in a row; got a slice with step {step}")
        return self.source[self.start + start : self.start + max(start, stop)]


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


def clip_loader(
    clips: Sequence[Clip],
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    shuffle: bool,
    num_workers: int = 0,
) -> DataLoader[list[Clip]]:
    """Return one epoch of batches, lists of `batch_size` clips, the last one shorter where they do not divide.

    The order is a function of seed and epoch alone, and torch's global random state is left as it is. Without workers
    frames are read where they are used; with `num_workers` processes these read them ahead (Clip.load).
    """
    if batch_size < 1 or num_workers < 0:
        raise DataError(f"batch_size={batch_size}, num_workers={num_workers}; expected at least 1 and at least 0")
    order = np.random.default_rng([seed, epoch]).permutation(len(clips)) if shuffle else np.arange(len(clips))
    batches = [order[start : start + batch_size].tolist() for start in range(0, len(order), batch_size)]
    dataset: Dataset[Any] = _Loading(clips) if num_workers else _Lazy(clips)
    return DataLoader(
        dataset,
        batch_sampler=batches,
        collate_fn=list,
        num_workers=num_workers,
        generator=torch.Generator().manual_seed(0),
    )


class _Lazy(Dataset[Clip]):
    def __init__(self, clips: Sequence[Clip]) -> None:
        self.clips = clips

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> Clip:
        return self.clips[index]


class _Loading(_Lazy):
    def __getitem__(self, index: int) -> Clip:
        return self.clips[index].load()
