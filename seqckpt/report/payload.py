"""What the page's script draws from: phases, and each video's frames, small enough to be part of the page.

Phases are stretches, [phase, frames, phase, frames, ...], -1 where there is no label. Probabilities are one byte each,
in per cent: those of all phases, frame by frame, or where these would be too many only that of the phase predicted.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqckpt.plots import phase_style
from seqckpt.report.records import Report
from seqckpt.report.stretches import find_stretches
from seqckpt.training import VideoPrediction

__all__ = ["HATCHES", "has_all_probabilities", "write_payload"]

HATCHES = {"": "plain", "////": "stripes", "....": "dots", "xxxx": "crosses"}  # of plots.style -> of page.css, page.js
_MOST_PROBABILITIES = 1_000_000  # bytes, before base64


def write_payload(report: Report) -> str:
    """Return the page's data as JSON that can stand inside a <script>: no <, > or &, and nothing but ASCII."""
    complete = has_all_probabilities(report.predictions)
    pictures = report.thumbnails
    data = {
        "phases": [_describe_phase(number, name) for number, name in enumerate(report.phase_names)],
        "pictures": pictures
        and {name: getattr(pictures, name) for name in ("width", "height", "every", "columns", "per_sheet")},
        "videos": [
            {
                "id": entry.video_id,
                **_describe_seconds(entry.seconds),
                "truth": _list_stretches(entry.truth),
                "prediction": _list_stretches(entry.prediction),
                "probabilities": _pack(entry, complete=complete),
                "sheets": [_base64(sheet) for sheet in pictures.sheets.get(entry.video_id, ())] if pictures else [],
            }
            for entry in report.predictions
        ],
        "all_probabilities": complete,
    }
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def has_all_probabilities(predictions: Sequence[VideoPrediction]) -> bool:
    """Say whether the page holds every phase's probability for every frame."""
    return sum(entry.probabilities.size for entry in predictions) <= _MOST_PROBABILITIES


def _describe_phase(number: int, name: str) -> dict[str, str]:
    style = phase_style(number)
    return {"name": name, "color": style["color"], "hatch": HATCHES[style["hatch"]]}


def _describe_seconds(seconds: NDArray[np.float64]) -> dict[str, Any]:
    """Write times that are evenly spread as start and step, others one by one."""
    num_frames = len(seconds)
    step = float(seconds[-1] - seconds[0]) / (num_frames - 1) if num_frames > 1 else 1.0
    even = seconds[0] + step * np.arange(num_frames)
    described: dict[str, Any] = {"frames": num_frames, "start": round(float(seconds[0]), 3), "step": step}
    if np.abs(even - seconds).max() > 0.002:  # predictions on disk have milliseconds
        described["seconds"] = [round(second, 3) for second in seconds.tolist()]
    return described


def _list_stretches(phases: NDArray[np.int64]) -> list[int]:
    starts, stops = find_stretches(np.maximum(phases, -1))
    pairs = np.stack([np.maximum(phases[starts], -1), stops - starts], axis=1)
    return pairs.ravel().tolist()


def _pack(entry: VideoPrediction, *, complete: bool) -> str:
    shares = entry.probabilities
    if not complete:
        shares = shares[np.arange(len(shares)), entry.prediction]
    return _base64(np.rint(100 * np.clip(np.nan_to_num(shares), 0, 1)).astype(np.uint8).tobytes())


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
