"""Predicting the phases of whole videos, and scoring the predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seqckpt.data import IGNORE_INDEX, Prefetched, Video
from seqckpt.metrics import Accumulator, VideoScores
from seqckpt.models import VideoModel

__all__ = ["IGNORE_INDEX", "VideoPrediction", "predict_videos", "score"]


@dataclass(frozen=True)
class VideoPrediction:
    """One video's frames: time in seconds, true phase (-100: no label), predicted phase, (T,); probabilities (T, K)."""

    video_id: str
    seconds: NDArray[np.float64]
    truth: NDArray[np.int64]
    prediction: NDArray[np.int64]
    probabilities: NDArray[np.float32]


def predict_videos(
    model: VideoModel, videos: Sequence[Video], *, window: int, before_each: Callable[[], object] = lambda: None
) -> list[VideoPrediction]:
    """Predict every frame of the videos, one video after the other, in eval mode; the model's mode is put back.

    A video goes through in windows of that many frames, the recurrent state handed on from one to the next: the same
    as the whole video at once. Only two windows' frames are in memory: this one's, and the next one's being read.
    `before_each` is called before each window, and may raise.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return [_predict(model, video, window, before_each) for video in videos]
    finally:
        model.train(was_training)


def score(predictions: Sequence[VideoPrediction], num_phases: int) -> VideoScores:
    """Score predictions under the protocol `video`."""
    accumulator = Accumulator(num_phases)
    for entry in predictions:
        accumulator.add(entry.truth, entry.prediction, video=entry.video_id)
    scores = accumulator.scores(["video"])["video"]
    assert isinstance(scores, VideoScores)
    return scores


def _predict(model: VideoModel, video: Video, window: int, before_each: Callable[[], object]) -> VideoPrediction:
    state: Any = None
    parts = []
    frames = Prefetched(video.frames, turns_back=False)
    for start in range(0, len(frames), window):
        before_each()
        (logits,), state = model.predict([frames[start : min(start + window, len(frames))]], state)
        parts.append(logits.float().cpu())
    probabilities = torch.cat(parts).softmax(dim=-1)
    return VideoPrediction(
        video_id=video.video_id,
        seconds=video.seconds,
        truth=video.phases.numpy(),
        prediction=probabilities.argmax(dim=-1).numpy(),
        probabilities=probabilities.numpy(),
    )
