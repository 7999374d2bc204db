"""Reports made by hand, with frames whose number can be read from their colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqckpt.metrics import Accumulator
from seqckpt.report import Report, make_thumbnails
from seqckpt.report.scores import score_tables
from seqckpt.training import VideoPrediction

__all__ = ["HOSTILE", "NAMES", "GreyFrames", "make_prediction", "make_report"]

NAMES = ["preparation", "dissection", "closing"]
HOSTILE = (
    """</script><script>alert('a')</script> "b" & <img src=x onerror=alert(1)> $title ${x} ü 手術 \u2028 ]]> <!--"""
)


class GreyFrames:
    """Frame k of `num_frames` is grey, of brightness 5 k, 64 x 64 pixels; reads are counted."""

    def __init__(self, num_frames: int, size: int = 64) -> None:
        self.num_frames, self.size, self.num_read = num_frames, size, 0

    def __len__(self) -> int:
        return self.num_frames

    def __getitem__(self, index: slice) -> Tensor:
        numbers = torch.arange(self.num_frames)[index]
        self.num_read += len(numbers)
        grey = (5 * numbers % 256).to(torch.uint8)
        return grey[:, None, None, None].expand(-1, 3, self.size, self.size)


def make_prediction(
    video_id: str, truth: Sequence[int], prediction: Sequence[int], *, num_phases: int = 3, **changes: Any
) -> VideoPrediction:
    """Make a video with a frame a second; frame k has the probability 0.4 + k / 100 for what was predicted."""
    num_frames = len(prediction)
    probabilities = np.zeros((num_frames, num_phases), np.float32)
    for frame, phase in enumerate(prediction):
        share = min(1.0, 0.4 + frame / 100)
        probabilities[frame] = (1 - share) / max(1, num_phases - 1)
        probabilities[frame, phase] = share
    fields = {
        "video_id": video_id,
        "seconds": np.arange(num_frames, dtype=np.float64),
        "truth": np.array(truth, np.int64),
        "prediction": np.array(prediction, np.int64),
        "probabilities": probabilities,
    }
    return VideoPrediction(**{**fields, **changes})


def make_report(predictions: Sequence[VideoPrediction], names: Sequence[str] = NAMES, **fields: Any) -> Report:
    """Make a report with pictures for all videos, unless other fields are given."""
    tables, _, pooled = score_tables(predictions, names, Accumulator(len(names), fps=1))
    if "thumbnails" not in fields:
        sources = {entry.video_id: GreyFrames(len(entry.seconds)) for entry in predictions}
        fields["thumbnails"] = make_thumbnails(sources, budget_bytes=10**6)
    made = {
        "title": "a run",
        "subtitle": "small + lstm",
        "tables": tables,
        "confusion": pooled.confusion,
        "curves": [{"epoch": 1, "train_loss": 2.0, "val_accuracy": 0.5}, {"epoch": 2, "train_loss": 1.0}],
        "settings": [("data.fps", "1", False), ("train.lr", "0.002", True)],
    }
    return Report(phase_names=names, predictions=predictions, **{**made, **fields})
