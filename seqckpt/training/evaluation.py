"""Predicting the phases of whole videos, and scoring the predictions."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seqckpt.data import IGNORE_INDEX, FrameSource, Prefetched, Video
from seqckpt.errors import TrainingError
from seqckpt.metrics import Accumulator, VideoScores
from seqckpt.models import VideoModel
from seqckpt.training.budget import out_of_memory_explained
from seqckpt.training.interrupt import Stopped
from seqckpt.training.ranks import Ranks
from seqckpt.training.sharing import deal

__all__ = ["IGNORE_INDEX", "VideoPrediction", "predict_videos", "predict_windows", "score"]


@dataclass(frozen=True)
class VideoPrediction:
    """One video's frames: time in seconds, true phase (-100: no label), predicted phase, (T,); probabilities (T, K)."""

    video_id: str
    seconds: NDArray[np.float64]
    truth: NDArray[np.int64]
    prediction: NDArray[np.int64]
    probabilities: NDArray[np.float32]


def predict_videos(
    model: VideoModel,
    videos: Sequence[Video],
    *,
    window: int,
    before_each: Callable[[], object] = lambda: None,
    ranks: Ranks | None = None,
) -> list[VideoPrediction]:
    """Predict every frame of the videos, one video after the other, in eval mode; the model's mode is put back.

    A video goes through in windows of that many frames, the recurrent state handed on from one to the next: the same
    as the whole video at once. Only two windows' frames are in memory: this one's, and the next one's being read.
    `before_each` is called before each window, and may raise; Stopped on one rank is raised on all.

    Of several ranks each predicts some of the videos, every video on one of them; all return all predictions.
    Raises TrainingError, with the video named, where a probability is not finite or memory runs out.
    """
    ranks = ranks or Ranks()
    hands = deal([len(video) for video in videos], ranks.world_size)
    was_training = model.training
    own: list[VideoPrediction] | None = None
    stopped: Stopped | None = None
    model.eval()
    try:
        own = [_predict(model, videos[place], window, before_each) for place in hands[ranks.rank]]
    except Stopped as stop:
        stopped = stop
        if stop.at_once:
            raise
    finally:
        model.train(was_training)
    parts = ranks.gather(own)
    if any(part is None for part in parts):
        raise stopped or Stopped(signal.SIGTERM)
    places = chain.from_iterable(hands)
    known = dict(zip(places, chain.from_iterable(part or () for part in parts), strict=True))
    return [known[place] for place in range(len(videos))]


@torch.no_grad()
def predict_windows(
    model: VideoModel, frames: FrameSource, *, window: int, before_each: Callable[[], object] = lambda: None
) -> Iterator[NDArray[np.float32]]:
    """Yield the probabilities of one video's frames, (t, K) for t = `window` frames at a time; call it in eval mode.

    The frames are read ahead in a second thread. The recurrent state begins at zero and is handed on from window to
    window. A network that reads frames from the end too is given the whole video at once, whatever `window` says.
    `before_each` is called before each window, and may raise.
    """
    state: Any = None
    ahead = Prefetched(frames, turns_back=False)
    if model.is_bidirectional:
        window = max(1, len(frames))
    for start in range(0, len(frames), window):
        before_each()
        clip = ahead if window >= len(frames) else ahead[start : min(start + window, len(frames))]
        (logits,), state = model.predict([clip], state)
        yield logits.float().cpu().softmax(dim=-1).numpy()


def score(predictions: Sequence[VideoPrediction], num_phases: int) -> VideoScores:
    """Score predictions under the protocol `video`."""
    accumulator = Accumulator(num_phases)
    for entry in predictions:
        accumulator.add(entry.truth, entry.prediction, video=entry.video_id)
    scores = accumulator.scores(["video"])["video"]
    assert isinstance(scores, VideoScores)
    return scores


def _predict(model: VideoModel, video: Video, window: int, before_each: Callable[[], object]) -> VideoPrediction:
    parts = predict_windows(model, video.frames, window=window, before_each=before_each)
    with out_of_memory_explained(lambda: f"while {video.video_id} was predicted"):
        probabilities = np.concatenate(list(parts))
    _check_finite(probabilities, video)
    return VideoPrediction(
        video_id=video.video_id,
        seconds=video.seconds,
        truth=video.phases.numpy(),
        prediction=probabilities.argmax(axis=-1),
        probabilities=probabilities,
    )


def _check_finite(probabilities: NDArray[np.float32], video: Video) -> None:
    """Raise TrainingError where they are not: their argmax would pass for a phase, and be scored."""
    bad = np.flatnonzero(~np.isfinite(probabilities).all(axis=-1))
    if len(bad):
        raise TrainingError(
            f"the predictions of {video.video_id} are not finite in {len(bad)} of {len(probabilities)} frames, first "
            f"in frame {bad[0]}: weights or running statistics of the model are too large. Lower train.lr, or "
            "take model.batch_norm=frozen or group"
        )
