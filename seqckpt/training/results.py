"""What a run leaves behind for people: tables, predictions, pictures, and the summary, which comes last."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqckpt.atomic import write_text
from seqckpt.plots import Ribbon, plot_curves, plot_ribbons
from seqckpt.training.evaluation import VideoPrediction

__all__ = ["draw_curves", "write_results", "write_table"]


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV, whole or not at all; the columns are those of the first row."""
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def draw_curves(folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Draw curves.png from the rows of metrics.csv, if an epoch was finished."""
    if records:
        plot_curves(records, folder / "curves.png", x="epoch")


def write_results(
    folder: Path, predictions: Sequence[VideoPrediction], phase_names: Sequence[str], summary: Mapping[str, Any]
) -> None:
    """Write predictions/<video>.csv, ribbons.png and, when all else is there, summary.json.

    Undefined numbers (nan) are null in the summary.
    """
    (folder / "predictions").mkdir(exist_ok=True)
    for entry in predictions:
        write_table(folder / "predictions" / f"{entry.video_id}.csv", _prediction_rows(entry, phase_names))
    ribbons = [Ribbon(entry.video_id, entry.truth, entry.prediction, entry.seconds) for entry in predictions]
    plot_ribbons(ribbons, phase_names, folder / "ribbons.png")
    plain = {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in summary.items()}
    write_text(folder / "summary.json", json.dumps(plain, indent=2) + "\n")


def _prediction_rows(entry: VideoPrediction, phase_names: Sequence[str]) -> Iterable[dict[str, Any]]:
    """Yield one row a frame; phases by name, the true one empty where there is no label."""
    frames = zip(entry.seconds, entry.truth, entry.prediction, entry.probability, strict=True)
    for second, truth, prediction, probability in frames:
        yield {
            "second": f"{second:.3f}".rstrip("0").rstrip("."),
            "true_phase": phase_names[truth] if truth >= 0 else "",
            "predicted_phase": phase_names[prediction],
            "probability": f"{probability:.4f}",
        }
