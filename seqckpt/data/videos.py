"""What the rest of the package knows of a data set: videos, their sampled frames, and a label for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqckpt.data.frame_source import FrameSource
from seqckpt.errors import DataError

__all__ = ["IGNORE_INDEX", "Video", "count_classes"]

IGNORE_INDEX = -100  # the label of what has no label


@dataclass(frozen=True, eq=False)
class Video:
    """One recording, sampled: T frames and what is known of each.

    Args:
        video_id: its name in the data set, such as "video01".
        frames: the T frames, uint8 (C, H, W) each; read when sliced.
        seconds: float64 (T,), when each frame is shown, from 0.
        phases: int64 (T,), the phase of each frame, IGNORE_INDEX where unlabelled.
        tools: int64 (T, num_tools) of 0 and 1, IGNORE_INDEX where unlabelled; None where the data set has none.
        path: the file that the frames come from.
    """

    video_id: str
    frames: FrameSource
    seconds: NDArray[np.float64]
    phases: Tensor
    tools: Tensor | None
    path: Path

    def __post_init__(self) -> None:
        lengths = {"frames": len(self.frames), "seconds": len(self.seconds), "phases": len(self.phases)}
        if self.tools is not None:
            lengths["tools"] = len(self.tools)
        if len(set(lengths.values())) != 1:
            raise ValueError(f"{self.video_id}: expected one length for all, got {lengths}")

    def __len__(self) -> int:
        return len(self.seconds)


def count_classes(videos: Iterable[Video], num_classes: int) -> Tensor:
    """Count the labelled frames of each phase over videos: int64 (num_classes,), 0 where a phase does not occur.

    Raises DataError where a label is neither IGNORE_INDEX nor in 0 .. num_classes - 1.
    """
    counts = torch.zeros(num_classes, dtype=torch.int64)
    for video in videos:
        labels = video.phases[video.phases != IGNORE_INDEX]
        wrong = labels[(labels < 0) | (labels >= num_classes)]
        if len(wrong):
            raise DataError(
                f"{video.video_id} ({video.path}) has the label {int(wrong[0])}; expected 0 to {num_classes - 1}, "
                f"or {IGNORE_INDEX} for frames without a label"
            )
        counts += torch.bincount(labels, minlength=num_classes)
    return counts
