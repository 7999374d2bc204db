"""Means and spreads of a measure over videos and phases, and scores as plain numbers.

Standard deviations divide by N - 1, as MATLAB's `std` in the M2CAI challenge script that most papers report with; that
of a single value is nan.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from seqckpt.metrics.frame import Floats, mean_of_defined

__all__ = ["Measure", "average", "plain", "std_of_defined"]


@dataclasses.dataclass(frozen=True)
class Measure:
    """One phase measure over a set of V videos and K phases; nan where undefined.

    `mean` is the mean of `per_phase`, which holds means over videos; `std_over_phases` is its spread.
    `std_over_videos` is the spread of `per_video`, which holds each video's mean over its phases.
    """

    mean: float
    std_over_phases: float
    std_over_videos: float
    per_phase: Floats
    per_video: Floats
    per_video_and_phase: Floats


def average(per_video_and_phase: Floats) -> Measure:
    """Average values (V, K) over videos per phase, and over phases; what is nan is left out."""
    per_phase = np.array([mean_of_defined(column) for column in per_video_and_phase.T])
    per_video = np.array([mean_of_defined(row) for row in per_video_and_phase])
    return Measure(
        mean=mean_of_defined(per_phase),
        std_over_phases=std_of_defined(per_phase),
        std_over_videos=std_of_defined(per_video),
        per_phase=per_phase,
        per_video=per_video,
        per_video_and_phase=per_video_and_phase,
    )


def std_of_defined(values: Floats) -> float:
    """Return the spread of what is not nan; nan where that is fewer than two values."""
    defined = values[~np.isnan(values)]
    return float(defined.std(ddof=1)) if defined.size > 1 else float("nan")


def plain(value: Any) -> Any:
    """Return scores as plain numbers, lists and dictionaries for JSON, undefined values as None."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(entry) for entry in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return None if isinstance(value, float) and math.isnan(value) else value
