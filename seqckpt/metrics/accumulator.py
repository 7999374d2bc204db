"""Gathering videos, whole or in chunks, and scoring them under every protocol at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seqckpt.errors import UsageError
from seqckpt.metrics.delay import DelayScores, delay_scores
from seqckpt.metrics.frame import IGNORE_INDEX, Floats, Integers, checked_phases, mean_of_defined
from seqckpt.metrics.measure import plain, std_of_defined
from seqckpt.metrics.protocols import PooledScores, VideoScores, pooled_scores, video_scores
from seqckpt.metrics.relaxed import TOLERANCE_SECONDS, Neighbours, RelaxedScores, relaxed_scores
from seqckpt.metrics.segmental import SegmentalScores, segmental_scores

__all__ = ["PROTOCOLS", "Accumulator", "InferenceTime", "Scores"]

Scores = VideoScores | PooledScores | RelaxedScores | SegmentalScores | DelayScores

PROTOCOLS = ("video", "pooled", "relaxed", "relaxed-matlab", "segmental", "delay")
_OF_TIME = ("relaxed", "relaxed-matlab", "delay")  # these need to know how long a frame lasts


@dataclass(frozen=True)
class InferenceTime:
    """Seconds that predicting took, per video; nan for a video whose time is not known."""

    mean_seconds: float
    std_seconds_over_videos: float
    frames_per_second: float
    seconds_per_video: Floats

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and lists for JSON, undefined values as None."""
        return plain(self)


@dataclass
class _Gathered:
    truths: list[Integers] = field(default_factory=list)
    predictions: list[Integers] = field(default_factory=list)
    seconds: float = float("nan")
    num_frames: int = 0


class Accumulator:
    """Truths and predictions of videos, gathered as they come. Memory: 16 bytes a frame.

    >>> accumulator = Accumulator(2, fps=1)
    >>> accumulator.add([0, 0], [0, 1], video="first")
    >>> accumulator.add([1, 1], [1, 1], video="first")  # the next chunk of it
    >>> accumulator.add([0, 0], [0, 0], video="second")
    >>> scores = accumulator.scores()
    >>> scores["video"].accuracy_mean, scores["segmental"].edit_mean
    (0.875, 100.0)

    Args:
        num_phases: K; phases are 0 to K - 1.
        fps: rate of the frames that are added, which `relaxed`, `relaxed-matlab` and `delay` need.
        tolerance_seconds, neighbours: see `seqckpt.metrics.relaxed`.
        background: phases that the protocol `segmental` leaves out.
        ignore_index: the truth of frames without label.

    Raises UsageError for a background that is no phase.
    """

    def __init__(
        self,
        num_phases: int,
        *,
        fps: float | None = None,
        tolerance_seconds: float = TOLERANCE_SECONDS,
        neighbours: Neighbours | None = None,
        background: Collection[int] = (),
        ignore_index: int = IGNORE_INDEX,
    ) -> None:
        unknown = [phase for phase in background if phase not in range(num_phases)]
        if unknown:
            raise UsageError(f"the background {unknown[0]} is no phase: expected some of 0 to {num_phases - 1}")
        self.num_phases = num_phases
        self.fps = fps
        self.tolerance_seconds = tolerance_seconds
        self.neighbours = neighbours
        self.background = background
        self.ignore_index = ignore_index
        self._videos: dict[str, _Gathered] = {}

    @property
    def videos(self) -> list[str]:
        """The videos in the order in which they were first added: that of every `per_video`."""
        return list(self._videos)

    def add(
        self,
        truth: ArrayLike,
        prediction: ArrayLike,
        *,
        video: str | None = None,
        inference_seconds: float | None = None,
    ) -> None:
        """Add a video, or the next chunk of one: integers (T,), as many of each.

        Without a name it is a video of its own. Raises LengthMismatchError or UsageError for what cannot be scored;
        then nothing was added.
        """
        checked_phases(truth, prediction, self.num_phases, ignore_index=self.ignore_index)
        name = f"video {len(self._videos) + 1}" if video is None else video
        if video is None and name in self._videos:
            raise UsageError(f"a video is called {name!r} already: name all videos, or none")
        gathered = self._videos.setdefault(name, _Gathered())
        gathered.truths.append(np.asarray(truth).astype(np.int64))
        gathered.predictions.append(np.asarray(prediction).astype(np.int64))
        gathered.num_frames += gathered.truths[-1].size
        if inference_seconds is not None:
            gathered.seconds = float(np.nan_to_num(gathered.seconds)) + inference_seconds

    def scores(self, protocols: Sequence[str] = PROTOCOLS) -> dict[str, Scores]:
        """Score all videos added under the protocols named, in that order.

        Raises UsageError for an unknown protocol, where nothing was added, or where `fps` is missing.
        """
        self.check_protocols(protocols)
        truths = [np.concatenate(video.truths) for video in self._videos.values()]
        predictions = [np.concatenate(video.predictions) for video in self._videos.values()]
        return {name: self._score(name, truths, predictions) for name in protocols}

    def check_protocols(self, protocols: Sequence[str]) -> None:
        """Raise UsageError for an unknown protocol, or for one that needs `fps` where it is missing."""
        unknown = [name for name in protocols if name not in PROTOCOLS]
        if unknown:
            raise UsageError(f"{unknown[0]!r} is no protocol: expected some of {', '.join(PROTOCOLS)}")
        of_time = [name for name in protocols if name in _OF_TIME]
        if of_time and self.fps is None:
            raise UsageError(
                f"{of_time[0]} is about seconds: give fps=, the rate of the frames, or choose other protocols"
            )

    def inference_time(self) -> InferenceTime | None:
        """Return what the `inference_seconds` come to; None where none were given."""
        seconds = np.array([video.seconds for video in self._videos.values()])
        frames = np.array([video.num_frames for video in self._videos.values()])
        timed = ~np.isnan(seconds)
        if not timed.any():
            return None
        total = float(seconds[timed].sum())
        return InferenceTime(
            mean_seconds=mean_of_defined(seconds),
            std_seconds_over_videos=std_of_defined(seconds),
            frames_per_second=float(frames[timed].sum()) / total if total else float("nan"),
            seconds_per_video=seconds,
        )

    def _score(self, protocol: str, truths: list[Integers], predictions: list[Integers]) -> Scores:
        ignored: dict[str, Any] = {"ignore_index": self.ignore_index}
        relaxed = {"tolerance_seconds": self.tolerance_seconds, "neighbours": self.neighbours, **ignored}
        of_frames: dict[str, tuple[Callable[..., Scores], dict[str, Any]]] = {
            "video": (video_scores, ignored),
            "pooled": (pooled_scores, ignored),
            "relaxed": (relaxed_scores, {"fps": self.fps, **relaxed}),
            "relaxed-matlab": (relaxed_scores, {"fps": self.fps, "as_matlab": True, **relaxed}),
            "delay": (delay_scores, {"fps": self.fps, **ignored}),
        }
        if protocol == "segmental":
            return segmental_scores(truths, predictions, background=self.background, **ignored)
        function, options = of_frames[protocol]
        return function(truths, predictions, self.num_phases, **options)
