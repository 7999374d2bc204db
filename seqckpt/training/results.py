"""What a run leaves behind for people: tables, predictions, pictures, and the summary, which comes last."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seqckpt.atomic import write_text
from seqckpt.metrics import confusion_matrix
from seqckpt.plots import Ribbon, plot_confusion, plot_curves, plot_ribbons
from seqckpt.training.evaluation import VideoPrediction
from seqckpt.training.prediction_files import write_prediction

__all__ = ["draw_curves", "draw_validation", "write_results"]


def draw_curves(folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Draw curves.png from the rows of metrics.csv, if an epoch was finished."""
    if records:
        plot_curves(records, folder / "curves.png", x="epoch")


def draw_validation(
    folder: Path, predictions: Sequence[VideoPrediction], phase_names: Sequence[str]
) -> dict[str, Path]:
    """Draw the ribbons and the confusion matrix of validation videos; return where they are, by name."""
    pictures = {name: folder / f"val_{name}.png" for name in ("ribbons", "confusion")}
    _draw_ribbons(pictures["ribbons"], predictions, phase_names)
    confusion = sum(confusion_matrix(entry.truth, entry.prediction, len(phase_names)) for entry in predictions)
    plot_confusion(np.asarray(confusion), phase_names, pictures["confusion"])
    return pictures


def write_results(
    folder: Path, predictions: Sequence[VideoPrediction], phase_names: Sequence[str], summary: Mapping[str, Any]
) -> None:
    """Write predictions/<video>.csv, ribbons.png and, when all else is there, summary.json.

    Undefined numbers (nan) are null in the summary.
    """
    (folder / "predictions").mkdir(exist_ok=True)
    for entry in predictions:
        write_prediction(folder / "predictions" / f"{entry.video_id}.csv", entry, phase_names)
    _draw_ribbons(folder / "ribbons.png", predictions, phase_names)
    plain = {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in summary.items()}
    write_text(folder / "summary.json", json.dumps(plain, indent=2) + "\n")


def _draw_ribbons(path: Path, predictions: Sequence[VideoPrediction], phase_names: Sequence[str]) -> None:
    ribbons = [Ribbon(entry.video_id, entry.truth, entry.prediction, entry.seconds) for entry in predictions]
    plot_ribbons(ribbons, phase_names, path)
