"""How much later than in truth each phase was seen to begin: the protocol `delay`, in seconds.

A phase begins with its first labelled frame; its delay is the time of the first frame that is predicted to be of it,
less that of the first that is: negative where it was seen too early. Every phase of a video counts once, so that a
single stray frame long before a phase makes a large negative delay: what the surgeon in the room would have been told.
nan where the phase is not in a video's truth, or was never predicted in it; the latter are counted as missed.

Frames without label are no start of anything, but time goes on in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seqckpt.errors import UsageError
from seqckpt.metrics.frame import IGNORE_INDEX, Floats, Integers, checked_phases
from seqckpt.metrics.measure import Measure, average, plain
from seqckpt.metrics.protocols import check_videos

__all__ = ["DelayScores", "delay_scores", "transition_delays"]


@dataclass(frozen=True)
class DelayScores:
    """Delays in seconds under the protocol `delay`: signed, absolute, and how many videos miss each phase, (K,)."""

    protocol: str
    fps: float
    num_videos: int
    delay: Measure
    absolute_delay: Measure
    missed_per_phase: Integers

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and lists for JSON, undefined values as None."""
        return plain(self)


def delay_scores(
    truths: Sequence[ArrayLike],
    predictions: Sequence[ArrayLike],
    num_phases: int,
    *,
    fps: float,
    ignore_index: int = IGNORE_INDEX,
) -> DelayScores:
    """Measure the delays of videos, then average: one integer array per video in `truths` and `predictions`.

    >>> delay_scores([[0, 0, 1, 1]], [[0, 0, 0, 1]], 2, fps=2).delay.per_phase
    array([0. , 0.5])
    """
    check_videos(truths, predictions)
    pairs = list(zip(truths, predictions, strict=True))
    rows = [transition_delays(*pair, num_phases, fps=fps, ignore_index=ignore_index) for pair in pairs]
    missed = np.zeros(num_phases, np.int64)
    for (truth, guess), row in zip(pairs, rows, strict=True):
        labelled, _ = checked_phases(truth, guess, num_phases, ignore_index=ignore_index)
        missed += np.isin(np.arange(num_phases), labelled) & np.isnan(row)
    return DelayScores(
        protocol="delay",
        fps=float(fps),
        num_videos=len(pairs),
        delay=average(np.stack(rows)),
        absolute_delay=average(np.abs(np.stack(rows))),
        missed_per_phase=missed,
    )


def transition_delays(
    truth: ArrayLike, prediction: ArrayLike, num_phases: int, *, fps: float, ignore_index: int = IGNORE_INDEX
) -> Floats:
    """Return the delay of each phase in one video, float64 (K,) in seconds.

    >>> transition_delays([0, -100, 1, 1, 2], [0, 1, 0, 1, 0], 4, fps=1)
    array([ 0.,  1., nan, nan])
    """
    if not (math.isfinite(fps) and fps > 0):
        raise UsageError(f"fps={fps}: expected the sampled frames per second, a number above 0")
    kept_truth, kept_prediction = checked_phases(truth, prediction, num_phases, ignore_index=ignore_index)
    frames = np.flatnonzero(np.asarray(truth) != ignore_index)
    delays = np.full(num_phases, np.nan)
    for phase in range(num_phases):
        true, guessed = frames[kept_truth == phase], frames[kept_prediction == phase]
        if true.size and guessed.size:
            delays[phase] = (guessed[0] - true[0]) / fps
    return delays
