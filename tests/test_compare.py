"""`seqckpt compare`: scores of runs side by side with differences, their ribbons, and what cannot be compared."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.image import imread

from seqckpt.cli import main
from seqckpt.data.formats.cholec80 import PHASES
from seqckpt.metrics import Accumulator
from seqckpt.training import read_prediction

COLUMN = "video04.csv"


@pytest.fixture
def other(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, called "other", that predicts the truth throughout."""
    folder = tmp_path / "runs" / "other"
    shutil.copytree(run, folder)
    change(folder, lambda row: row | {"phase": row["true_phase"]})
    return folder


def change(folder: Path, function: Callable[[dict[str, str]], dict[str, str] | None]) -> None:
    """Pass every row of a run's predictions through a function; None leaves it out."""
    path = folder / "predictions" / COLUMN
    with open(path, newline="", encoding="utf-8") as file:
        rows = [new for row in csv.DictReader(file) if (new := function(row)) is not None]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["compare", *map(str, arguments)]) == 2
    return capsys.readouterr().err.split("error: ", 1)[1]


def test_scores_stand_side_by_side(run: Path, other: Path, tmp_path: Path, capsys) -> None:
    assert main(["compare", str(run), str(other), f"output={tmp_path / 'out'}"]) == 0
    shown = capsys.readouterr().out
    assert "2 runs, 1 test videos; differences are from trained" in shown
    entry = read_prediction(run / "predictions" / COLUMN, PHASES)
    accumulator = Accumulator(7, fps=1)
    accumulator.add(entry.truth, entry.prediction)
    scores = accumulator.scores()
    with open(tmp_path / "out" / "comparison.csv", newline="", encoding="utf-8") as file:
        rows = {
            tuple(row[key] for key in ("protocol", "measure", "video", "phase")): row for row in csv.DictReader(file)
        }
    for protocol in ("video", "relaxed", "relaxed-matlab"):
        row = rows[protocol, "accuracy", "", ""]
        own = 100 * scores[protocol].accuracy_mean
        assert float(row["trained"]) == pytest.approx(own)
        assert float(row["other"]) == 100
        assert float(row["other - trained"]) == pytest.approx(100 - own)
    assert float(rows["segmental", "edit", "video04", ""]["other"]) == 100
    line = next(line for line in shown.splitlines() if line.startswith("video ") and "accuracy, %" in line)
    own = 100 * scores["video"].accuracy_mean
    assert line.split()[-3:] == [f"{own:.2f}", "100.00", f"{100 - own:+.2f}"]
    record = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert record["differences_from"] == "trained"
    assert record["runs"]["trained"]["scores"]["video"] == scores["video"].as_dict()
    assert record["runs"]["other"]["scores"]["video"]["accuracy_mean"] == 1


def test_every_run_and_video_has_a_ribbon(
    run: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seqckpt.cli import compare

    drawn = []
    draw = compare.plot_ribbons

    def spy(ribbons, *arguments) -> None:
        drawn.extend(ribbons)
        draw(ribbons, *arguments)

    monkeypatch.setattr(compare, "plot_ribbons", spy)
    assert main(["compare", str(run), str(other), "protocol=video", f"output={tmp_path}"]) == 0
    assert [ribbon.video_id for ribbon in drawn] == ["video04  trained", "video04  other"]
    assert (drawn[1].prediction == drawn[1].truth).all()
    height, width, _ = imread(tmp_path / "ribbons.png").shape
    assert width == 1650
    assert height > 300


def test_runs_are_found_by_name_and_results_lie_beside_them(
    run: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "runs" / "trained")
    assert main(["compare", "trained", "other", "protocol=pooled"]) == 0
    folder = tmp_path / "runs" / "trained-vs-other"
    assert sorted(path.name for path in folder.iterdir()) == ["comparison.csv", "comparison.json", "ribbons.png"]
    third = shutil.copytree(run, tmp_path / "elsewhere" / "trained")
    assert main(["compare", "trained", "other", str(third), "protocol=pooled", "output=three"]) == 0
    with open("three/comparison.csv", newline="", encoding="utf-8") as file:
        first = next(csv.DictReader(file))
    names = ["runs/trained", "runs/other", str(third)]
    assert list(first)[5:] == [*names, f"{names[1]} - {names[0]}", f"{names[2]} - {names[0]}"]


def test_mistakes_in_the_arguments(run: Path, other: Path, capsys) -> None:
    assert "1 run given: expected two or more" in fails(capsys, run)
    assert "0 run given" in fails(capsys)
    assert "is given twice: expected different runs" in fails(capsys, run, run)
    assert "split=val: expected runs by folder or name, and protocol=" in fails(capsys, run, other, "split=val")
    assert "protocol=best: there is no such protocol" in fails(capsys, run, other, "protocol=best")
    assert "there is no such run" in fails(capsys, run, "nowhere")


def test_runs_with_other_phases(run: Path, other: Path, capsys) -> None:
    config = other / "config.yaml"
    text = config.read_text()
    assert "- Preparation\n" in text
    config.write_text(text.replace("- Preparation\n", "- Start\n"))
    path = other / "predictions" / COLUMN
    path.write_text(path.read_text().replace("Preparation", "Start"))
    message = fails(capsys, run, other)
    assert "trained and other cannot be compared: they have other phases" in message
    assert "other: Start, CalotTriangleDissection" in message


def test_runs_with_other_videos(run: Path, other: Path, capsys) -> None:
    shutil.copy(other / "predictions" / COLUMN, other / "predictions" / "video09.csv")
    assert "only other was tested on video09; expected the same test videos" in fails(capsys, run, other)


def test_runs_with_other_truths(run: Path, other: Path, capsys) -> None:
    wrong = {"true_phase": "ClippingCutting"}
    change(other, lambda row: row | wrong if row["second"] in ("3", "4") else row)
    assert "the truth of video04 differs in 2 frames, first at second 3;" in fails(capsys, run, other)
    change(other, lambda row: None if row["second"] == "3" else row)
    message = fails(capsys, run, other)
    num_frames = len(read_prediction(run / "predictions" / COLUMN, PHASES).truth)
    assert f"video04 was sampled otherwise, {num_frames} frames at 1 fps and {num_frames - 1} at 1" in message


def test_a_run_that_was_not_finished(run: Path, other: Path, capsys) -> None:
    shutil.rmtree(other / "predictions")
    assert "other holds no predictions/*.csv: its training was not finished" in fails(capsys, run, other)


def test_help_speaks_of_no_keys(capsys) -> None:
    assert main(["compare", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "usage: seqckpt compare RUN RUN ..." in shown
    assert "data.root" not in shown
