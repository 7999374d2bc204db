"""Predictions on disk: one CSV a video, a row a frame, read and written here and nowhere else.

    second,true_phase,phase,probability of preparation,probability of dissection,...
    0,preparation,preparation,0.9713,0.0211,...

`true_phase` is empty where a frame has no label, and in the predictions of videos without annotation. A name that a
spreadsheet would take for a formula has a ' before it, see tables.py.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seqckpt.errors import DataError
from seqckpt.training.evaluation import IGNORE_INDEX, VideoPrediction
from seqckpt.training.tables import unquote, write_table

__all__ = ["prediction_rows", "read_prediction", "write_prediction"]

_PROBABILITY = "probability of "


def write_prediction(path: Path, prediction: VideoPrediction, phase_names: Sequence[str]) -> None:
    """Write one video's prediction, whole or not at all."""
    write_table(path, prediction_rows(prediction, phase_names))


def prediction_rows(prediction: VideoPrediction, phase_names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield one row a frame; phases by name, the true one empty where there is no label."""
    columns = [f"{_PROBABILITY}{name}" for name in phase_names]
    frames = zip(prediction.seconds, prediction.truth, prediction.prediction, prediction.probabilities, strict=True)
    for second, truth, phase, probabilities in frames:
        yield {
            "second": f"{second:.3f}".rstrip("0").rstrip("."),
            "true_phase": phase_names[truth] if truth >= 0 else "",
            "phase": phase_names[phase],
            **{column: f"{value:.4f}" for column, value in zip(columns, probabilities, strict=True)},
        }


def read_prediction(path: Path, phase_names: Sequence[str]) -> VideoPrediction:
    """Read what `write_prediction` wrote; the video's id is the file's name.

    Raises DataError, with file and line, where a phase is unknown, a column is missing or a value is no number.
    """
    ids = {name: number for number, name in enumerate(phase_names)}
    columns = [f"{_PROBABILITY}{name}" for name in phase_names]
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        known = reader.fieldnames or ()
        missing = [name for name in ("second", "true_phase", "phase", *columns) if name not in known]
        if missing:
            raise DataError(f"{path}: the column {missing[0]!r} is missing; expected a file that a run wrote")
        try:
            rows = []
            for row in reader:
                truth = ids[unquote(row["true_phase"])] if row["true_phase"] else IGNORE_INDEX
                rows.append(
                    (truth, ids[unquote(row["phase"] or "")], [float(row[name]) for name in ("second", *columns)])
                )
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(f"{path}, line {reader.line_num}: {error} is no phase or number of this run's") from error
    numbers_of_all = np.array([numbers for *_, numbers in rows], np.float64).reshape(len(rows), 1 + len(columns))
    return VideoPrediction(
        video_id=path.name.removesuffix(".csv"),
        seconds=numbers_of_all[:, 0],
        truth=np.array([truth for truth, *_ in rows], np.int64),
        prediction=np.array([phase for _, phase, _ in rows], np.int64),
        probabilities=numbers_of_all[:, 1:].astype(np.float32),
    )
