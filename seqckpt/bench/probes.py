"""Short clips, whose peaks foretell what a long one would need: what cannot fit is not tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seqckpt.bench.turns import fits
from seqckpt.bench.video_model import build_video_subject, parse_choice
from seqckpt.bench.worker import DoesNotFit, Refused, Worker

__all__ = ["SHORT", "find_problem", "predict_peak", "probe"]

SHORT = (8, 16)  # frames of the plain run's clips


def predict_peak(points: Sequence[tuple[int, int]], num_frames: int) -> float:
    """Continue the line through the last two of (frames, bytes); from one point, in proportion; 0 from none.

    >>> predict_peak([(100, 1100), (200, 2100)], 1000), predict_peak([(100, 1000)], 500), predict_peak([], 5)
    (10100.0, 5000.0, 0.0)
    """
    if not points:
        return 0.0
    if len(points) == 1:
        return points[0][1] * num_frames / points[0][0]
    (a, low), (b, high) = points[-2:]
    return low + (high - low) / (b - a) * (num_frames - a)


def probe(arguments: Mapping[str, Any], encoder: str, pixels: int, lengths: tuple[int, int]) -> list[tuple[int, int]]:
    """Peaks of two short clips, which say what each frame more takes."""
    points = []
    for num_frames in lengths:
        with Worker(build_video_subject, **arguments, encoder=encoder, pixels=pixels, num_frames=num_frames) as worker:
            points.append((num_frames, worker.ask("peak")["peak_bytes"]))
    return points


def find_problem(
    arguments: Mapping[str, Any],
    encoder: str,
    pixels: int,
    num_frames: int,
    points: list[tuple[int, int]],
    free: int,
) -> str | None:
    """Why a way cannot be tried, if so.

    `points` are its own peaks, or the plain run's of short clips; where those forbid it, its own are taken, and added.
    """
    known = [point for point in points if point[0] > SHORT[1]]
    problem = fits(predict_peak(known or points, num_frames), free)
    if problem is None or known or arguments["way"] == "plain":
        return problem
    shortest = max(20, 2 * parse_choice(arguments["choice"]).chunk_size)
    try:
        points += probe(arguments, encoder, pixels, (shortest, 2 * shortest))
    except (DoesNotFit, Refused) as error:
        return f"fails: {error}"
    return fits(predict_peak(points, num_frames), free)
