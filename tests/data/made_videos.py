"""Videos in memory whose pixels hold the number of their frame, and sources that tell how they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from seqckpt.data import FrameSource, Video

__all__ = ["Recorded", "make_video", "with_frames"]


def make_video(video_id: str, length: int, phases: list[int] | None = None) -> Video:
    """A video of 2 x 2 pixels."""
    frames = (torch.arange(length) % 256).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    labels = torch.tensor(phases if phases is not None else [k % 7 for k in range(length)], dtype=torch.int64)
    return Video(video_id, frames, np.arange(length, dtype=float), labels, None, Path(f"{video_id}.mp4"))


def with_frames(video: Video, frames: FrameSource) -> Video:
    """The same video with frames from elsewhere."""
    return Video(video.video_id, frames, video.seconds, video.phases, video.tools, video.path)


class Recorded:
    """A FrameSource that notes which frames it is asked for."""

    def __init__(self, frames: FrameSource) -> None:
        self.frames = frames
        self.reads: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: slice) -> torch.Tensor:
        self.reads.append(index.indices(len(self))[:2])
        return self.frames[index]
