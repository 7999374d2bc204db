"""Scores as flat rows, each with its protocol and unit: what tables, CSV files and comparisons are made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from seqckpt.metrics.accumulator import Scores
from seqckpt.metrics.delay import DelayScores
from seqckpt.metrics.frame import Floats
from seqckpt.metrics.measure import Measure
from seqckpt.metrics.protocols import MEASURES, PooledScores, VideoScores
from seqckpt.metrics.relaxed import RelaxedScores
from seqckpt.metrics.segmental import SegmentalScores

__all__ = ["ScoreRow", "score_rows"]

_NAN = float("nan")


@dataclass(frozen=True)
class ScoreRow:
    """One number: of one video or all (""), of one phase or all (""); shares are in percent, nan is undefined."""

    protocol: str
    measure: str
    unit: str
    video: str
    phase: str
    value: float
    std_over_videos: float = _NAN
    std_over_phases: float = _NAN


def score_rows(scores: Mapping[str, Scores], *, video_ids: Sequence[str], phase_names: Sequence[str]) -> list[ScoreRow]:
    """Return every number of the scores, protocol by protocol: for all, per phase, per video, per both.

    `video_ids` and `phase_names` are in the order in which the scores were computed.
    """
    return [row for of_one in scores.values() for row in _Writer(of_one, video_ids, phase_names).rows()]


@dataclass(frozen=True)
class _Writer:
    scores: Scores
    video_ids: Sequence[str]
    phase_names: Sequence[str]

    def rows(self) -> Iterator[ScoreRow]:
        scores = self.scores
        if isinstance(scores, PooledScores):
            yield from self._pooled(scores)
        elif isinstance(scores, SegmentalScores):
            yield from self._over_videos("edit", scores.edit_mean, scores.edit_std_over_videos, scores.edit_per_video)
            for overlap, f1 in scores.f1.items():
                yield from self._over_videos(f"f1@{overlap}", f1, _NAN, scores.f1_per_video[overlap])
        elif isinstance(scores, DelayScores):
            yield from self._measure("delay", scores.delay, 1, "s")
            yield from self._measure("absolute delay", scores.absolute_delay, 1, "s")
            missed = scores.missed_per_phase.astype(np.float64)
            yield from self._per_phase("videos that miss it", missed, 1, "videos")
        else:
            yield from self._of_frames(scores)

    def _of_frames(self, scores: VideoScores | RelaxedScores) -> Iterator[ScoreRow]:
        accuracy = (scores.accuracy_mean, scores.accuracy_std_over_videos, scores.accuracy_per_video)
        yield from self._over_videos("accuracy", *accuracy, factor=100)
        if isinstance(scores, VideoScores):
            yield self._row("balanced accuracy", scores.balanced_accuracy_mean)
        for name in MEASURES:
            if hasattr(scores, name):
                yield from self._measure(name, getattr(scores, name), 100, "%")

    def _pooled(self, scores: PooledScores) -> Iterator[ScoreRow]:
        yield self._row("accuracy", scores.accuracy)
        yield self._row("balanced accuracy", scores.balanced_accuracy)
        for name in MEASURES:
            yield self._row(name, getattr(scores, f"{name}_macro"))
            yield from self._per_phase(name, getattr(scores, f"{name}_per_phase"), 100, "%")

    def _row(self, measure: str, share: float) -> ScoreRow:
        return ScoreRow(self.scores.protocol, measure, "%", "", "", 100 * share)

    def _over_videos(
        self, measure: str, mean: float, std: float, per_video: Floats, *, factor: float = 1
    ) -> Iterator[ScoreRow]:
        yield ScoreRow(self.scores.protocol, measure, "%", "", "", factor * mean, std_over_videos=factor * std)
        for video, value in zip(self.video_ids, per_video, strict=True):
            yield ScoreRow(self.scores.protocol, measure, "%", video, "", factor * float(value))

    def _per_phase(self, measure: str, values: Floats, factor: float, unit: str, video: str = "") -> Iterator[ScoreRow]:
        for phase, value in zip(self.phase_names, values, strict=True):
            yield ScoreRow(self.scores.protocol, measure, unit, video, phase, factor * float(value))

    def _measure(self, name: str, measure: Measure, factor: float, unit: str) -> Iterator[ScoreRow]:
        spreads = {
            "std_over_videos": factor * measure.std_over_videos,
            "std_over_phases": factor * measure.std_over_phases,
        }
        yield ScoreRow(self.scores.protocol, name, unit, "", "", factor * measure.mean, **spreads)
        yield from self._per_phase(name, measure.per_phase, factor, unit)
        for video, mean, values in zip(self.video_ids, measure.per_video, measure.per_video_and_phase, strict=True):
            yield ScoreRow(self.scores.protocol, name, unit, video, "", factor * float(mean))
            yield from self._per_phase(name, values, factor, unit, video)
