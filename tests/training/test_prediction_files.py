"""Predictions on disk: what was written is read again, and what is wrong in a file is named by its line."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from seqckpt.errors import DataError
from seqckpt.training import VideoPrediction, read_prediction, write_prediction

NAMES = ["preparation", "dissection, wide"]


def make_prediction() -> VideoPrediction:
    probabilities = np.array([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]], np.float32)
    return VideoPrediction(
        "case.v2", np.array([0, 0.5, 1.04]), np.array([0, -100, 1]), np.array([0, 0, 1]), probabilities
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    prediction = make_prediction()
    write_prediction(tmp_path / "case.v2.csv", prediction, NAMES)
    again = read_prediction(tmp_path / "case.v2.csv", NAMES)
    assert again.video_id == "case.v2"
    for field in ("seconds", "truth", "prediction", "probabilities"):
        assert np.array_equal(getattr(again, field), getattr(prediction, field)), field
    first = (tmp_path / "case.v2.csv").read_text().splitlines()[0]
    assert first == 'second,true_phase,phase,probability of preparation,"probability of dissection, wide"'


@pytest.mark.parametrize("name", ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1", "'=1", "''=1", "'s", "-1", "1", "'"])
def test_no_cell_is_a_formula_and_every_name_is_read_again(tmp_path: Path, name: str) -> None:
    """A spreadsheet runs what begins with = + - @; names of phases come with somebody's data set."""
    path, names = tmp_path / "video01.csv", [name, "dissection"]
    write_prediction(path, make_prediction(), names)
    with open(path, newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell and cell[0] in "=+-@\t\r" and cell != "-1"]  # a number
    again = read_prediction(path, names)
    assert np.array_equal(again.truth, make_prediction().truth)
    assert np.array_equal(again.prediction, make_prediction().prediction)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.5,,preparation", "0.5,,closing", r"line 3: 'closing' is no phase"),
        ("0.7500", "much", r"line 2: could not convert string to float: 'much'"),
        ("second,", "seconds,", r"the column 'second' is missing"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "video01.csv"
    write_prediction(path, make_prediction(), NAMES)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        read_prediction(path, NAMES)
