"""`seqckpt evaluate`: a run's scores are those that training wrote, and other systems' files are strictly read."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqckpt.cli import main
from seqckpt.data.formats.cholec80 import PHASES
from seqckpt.metrics import PROTOCOLS, Accumulator, Neighbours
from seqckpt.training import read_prediction


def evaluate(*arguments: str) -> int:
    return main(["evaluate", *arguments])


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail by the user's mistake; return its message."""
    assert evaluate(*arguments) == 2
    message = capsys.readouterr().err.split("error: ", 1)[1]
    assert "Traceback" not in message
    return message.strip()


def read_rows(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {tuple(row[key] for key in ("protocol", "measure", "video", "phase")): row for row in rows}


def test_a_run_scores_as_training_said(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(f"run={run}", f"output={tmp_path}") == 0
    shown = capsys.readouterr().out
    record = json.loads((tmp_path / "test.json").read_text())
    summary = json.loads((run / "summary.json").read_text())
    assert summary["protocol"] == "video"
    assert record["scores"]["video"]["accuracy_mean"] == summary["test_accuracy"]
    assert record["scores"]["video"]["jaccard"]["mean"] == summary["test_jaccard"]
    assert list(record["scores"]) == list(PROTOCOLS)
    assert (record["split"], record["snapshot"], record["fps"]) == ("test", "best.pt", 1)
    assert record["relaxed_neighbours"] == "cholec80"
    assert record["videos"] == ["video04"]
    assert record["inference_time"]["mean_seconds"] > 0
    for protocol in PROTOCOLS:
        assert protocol in shown
    assert "GallbladderDissection" in shown
    assert not (run / "evaluation").exists()


def test_files_hold_what_the_functions_return(run: Path, tmp_path: Path) -> None:
    options = ["tolerance=3", "background=Preparation,CleaningCoagulation"]
    assert evaluate(f"run={run}", "split=test", f"output={tmp_path}", *options) == 0
    entry = read_prediction(run / "predictions" / "video04.csv", PHASES)
    accumulator = Accumulator(7, fps=1, tolerance_seconds=3, background=[0, 5])
    accumulator.add(entry.truth, entry.prediction)
    scores = accumulator.scores()
    rows = read_rows(tmp_path / "test.csv")
    for protocol in ("video", "relaxed", "relaxed-matlab"):
        assert float(rows[protocol, "accuracy", "", ""]["value"]) == pytest.approx(100 * scores[protocol].accuracy_mean)
        for phase, value in zip(PHASES, scores[protocol].jaccard.per_phase, strict=True):
            written = rows[protocol, "jaccard", "video04", phase]["value"]
            assert float(written or "nan") == pytest.approx(100 * value, nan_ok=True)
    assert float(rows["segmental", "edit", "", ""]["value"]) == pytest.approx(scores["segmental"].edit_mean)
    assert rows["delay", "delay", "", ""]["unit"] == "s"
    latex = (tmp_path / "test.tex").read_text()
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") >= 8
    assert r"jaccard per phase, \%" in latex
    lines = [line for line in latex.splitlines() if line.startswith("ClippingCutting & ")]
    assert len(lines) == 5
    assert all(line.endswith(r" \\") for line in lines)


def test_results_go_into_the_runs_folder(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(run, tmp_path / "runs" / "copy")
    monkeypatch.chdir(tmp_path)
    assert evaluate("run=copy", "split=val", "protocol=video,segmental") == 0
    folder = tmp_path / "runs" / "copy" / "evaluation"
    assert sorted(path.name for path in folder.iterdir()) == ["val.csv", "val.json", "val.tex"]
    record = json.loads((folder / "val.json").read_text())
    assert list(record["scores"]) == ["video", "segmental"]
    assert record["videos"] == ["video03"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["protocol=video,strict"], "protocol=strict: there is no such protocol; expected some of video, pooled"),
        (["split=testing"], "split=testing: no videos; expected one of train, val, test"),
        (["tolerance=-1"], "tolerance=-1: expected a number from 0"),
        (["background=idle"], "the background 'idle' is no phase: expected some of Preparation"),
        (["data.tial=1"], "unknown key; did you mean data.tail?"),
        (["fps=1"], "fps= goes with predictions= and truth="),
        (["config=surgical_video.yaml"], "config= and run= are both given"),
        (["split="], "split= has no value"),
    ],
)
def test_mistakes_about_a_run(run: Path, arguments: list[str], message: str, capsys) -> None:
    assert message in fails(capsys, f"run={run}", *arguments)


def test_no_run_and_no_predictions(capsys, tmp_path: Path) -> None:
    assert "run= is missing" in fails(capsys)
    assert "give run=, config= or truth=" in fails(capsys, f"predictions={tmp_path}")
    assert "there is no such run" in fails(capsys, "run=nowhere")


# --- files of other systems -------------------------------------------------------------------------------------------

TRUTH = {"a": [0, 0, 0, 1, 1, 1, 2, 2], "b": [0, 0, 2, 2]}
GUESS = {"a": [0, 0, 1, 1, 1, 1, 2, 0], "b": [0, 2, 2, 2]}
NAMES = ["cut", "sew", "close"]
Writer = Callable[..., Path]


def write_folder(
    folder: Path, videos: dict[str, list[Any]], *, step: int = 0, ending: str = "", header: str = ""
) -> Path:
    """Write a file a video, with frame numbers where `step` is given."""
    folder.mkdir(exist_ok=True)
    for video, labels in videos.items():
        rows = [f"{place * step}\t{label}" if step else str(label) for place, label in enumerate(labels)]
        (folder / f"{video}{ending}.txt").write_text(header + "".join(f"{row}\n" for row in rows))
    return folder


def named(videos: dict[str, list[int]]) -> dict[str, list[str]]:
    return {video: [NAMES[label] for label in labels] for video, labels in videos.items()}


def expected_scores(truths: dict[str, list[int]] = TRUTH, guesses: dict[str, list[int]] = GUESS) -> dict[str, Any]:
    accumulator = Accumulator(3, fps=2, tolerance_seconds=0.5, neighbours=Neighbours.one(3))
    for video in truths:
        accumulator.add(truths[video], guesses[video], video=video)
    return {name: scores.as_dict() for name, scores in accumulator.scores().items()}


@pytest.mark.parametrize(
    ("truth_form", "guess_form", "phases"),
    [
        ({}, {}, None),
        ({"named": True}, {}, "cut,sew,close"),
        ({"named": True, "step": 25, "ending": "-phase", "header": "Frame\tPhase\n"}, {"step": 25}, "cut,sew,close"),
        ({"step": 1}, {"named": True}, "cut,sew,close"),
    ],
)
def test_folders_of_labels(tmp_path: Path, truth_form, guess_form, phases) -> None:
    folders = []
    for name, videos, form in (("truth", TRUTH, dict(truth_form)), ("guess", GUESS, dict(guess_form))):
        shown = named(videos) if form.pop("named", False) else videos
        folders.append(write_folder(tmp_path / name, shown, **form))
    arguments = [f"truth={folders[0]}", f"predictions={folders[1]}", "fps=2", "tolerance=0.5"]
    assert evaluate(*arguments, *([f"phases={phases}"] if phases else [])) == 0
    record = json.loads((folders[1] / "evaluation" / "scores.json").read_text())
    assert record["scores"] == expected_scores()
    assert record["phases"] == (NAMES if phases else ["0", "1", "2"])
    assert record["inference_time"] is None


def test_phases_from_a_file_and_labels_that_mean_none(tmp_path: Path) -> None:
    """Case 103: "none" in the truth is no label; what is predicted there counts nowhere."""
    truth = named(TRUTH)
    truth["a"][2], truth["b"][0] = "none", "-100"
    (tmp_path / "mapping.txt").write_text("0 cut\n1 sew\n2 close\n")
    guess = write_folder(tmp_path / "guess", named(GUESS))
    folder = write_folder(tmp_path / "truth", truth)
    options = ["fps=2", "tolerance=0.5", f"phases={tmp_path / 'mapping.txt'}", "ignored=none,bg"]
    assert evaluate(f"truth={folder}", f"predictions={guess}", *options, f"output={tmp_path / 'out'}") == 0
    record = json.loads((tmp_path / "out" / "scores.json").read_text())
    truths = {video: list(labels) for video, labels in TRUTH.items()}
    truths["a"][2] = truths["b"][0] = -100
    assert record["scores"] == expected_scores(truths)
    assert record["scores"]["pooled"]["num_frames"] == 10


def test_minus_one_is_ignored_where_it_is_said_to_be(tmp_path: Path, capsys) -> None:
    """Cases 47 and 103."""
    truth = write_folder(tmp_path / "truth", {"a": [0, -1, 1, 1]})
    guess = write_folder(tmp_path / "guess", {"a": [0, 5, 1, 0]})
    arguments = [f"truth={truth}", f"predictions={guess}", "protocol=video,pooled"]
    assert f"{truth / 'a.txt'}:2: '-1' is no id" in fails(capsys, *arguments)
    assert evaluate(*arguments, "ignored=-1") == 0
    record = json.loads((guess / "evaluation" / "scores.json").read_text())
    assert record["scores"]["video"]["accuracy_mean"] == pytest.approx(2 / 3)
    assert record["scores"]["pooled"]["jaccard_macro"] == 0.5
    assert record["scores"]["pooled"]["jaccard_per_phase"] == [0.5, 0.5, None, None, None, None]


def test_fps_is_needed_only_for_what_is_about_seconds(tmp_path: Path, capsys) -> None:
    """Case 100: nothing guesses a frame rate."""
    arguments = [f"truth={write_folder(tmp_path / 't', TRUTH)}", f"predictions={write_folder(tmp_path / 'p', GUESS)}"]
    assert "relaxed is about seconds: give fps=" in fails(capsys, *arguments)
    assert evaluate(*arguments, "protocol=video,segmental,pooled") == 0
    assert "fps: not given" in capsys.readouterr().out
    assert evaluate(*arguments, "protocol=delay", "fps=1") == 0
    table = capsys.readouterr().out.split("delay per phase\n")[1].split("\n\n")[0].splitlines()
    assert table[0].split("  ")[-1] == "videos that miss it"
    assert all(line.split()[-1].isdigit() for line in table[1:])  # videos, not 1.00 of them


def spoil(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: spoil(p / "b.txt", "close\nclose\n", "close\n"), r"b.txt:3: 3 labels in all; expected 4"),
        (lambda p: spoil(p / "b.txt", "cut\n", "cut\ncut\n"), r"b.txt:5: 5 labels in all; expected 4"),
        (
            lambda p: (p / "b.txt").write_text("cut\n" * 100),
            r"100 labels in all; expected 4, .*: keep the first row of every 25",
        ),
        (
            lambda p: (p / "b.txt").write_text("cut\n"),
            r"1 labels in all; expected 4, .* needs the first row of every 4 only",
        ),
        (
            lambda p: spoil(p / "a.txt", "sew", "saw"),
            "a.txt:3: unknown phase 'saw'; expected one of cut, sew, close; did",
        ),
        (lambda p: spoil(p / "a.txt", "sew", "7"), "a.txt:3: the phase is '7'; expected a whole number from 0 to 2"),
        (lambda p: spoil(p / "a.txt", "sew", "-100"), "a.txt:3: '-100' is no phase; expected one"),
        (lambda p: (p / "b.txt").unlink(), "no file for b; expected one each for a, b"),
        (lambda p: (p / "c.txt").write_text("cut\n"), "files for c, which"),
        (lambda p: (p / "a-phase.txt").write_text("cut\n"), "are both for a; expected one file a video"),
        (lambda p: (p / "a.txt").write_text(" \n"), "a.txt holds no labels"),
        (
            lambda p: (p / "a.txt").write_text("0\tcut\n2\tcut\n3\tcut\n"),
            r"a.txt:3: frame 3 comes after frame 2 \(out of order\); expected frame 4",
        ),
        (lambda p: (p / "a.txt").write_text("1\tcut\n2\tcut\n"), "a.txt:1: the first row is for frame 1"),
        (
            lambda p: (p / "a.txt").write_text("0\tcut\nsew\n"),
            "a.txt:2: read 'sew'; expected a frame number and a label",
        ),
        (lambda p: (p / "a.txt").write_bytes(b"cut\n\xff\n"), "a.txt:2: not UTF-8"),
        (shutil.rmtree, "is no folder"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(tmp_path: Path, change, message: str, capsys) -> None:
    """Case 104 among them: nothing is cut off to fit."""
    truth = write_folder(tmp_path / "truth", named(TRUTH))
    guess = write_folder(tmp_path / "guess", named(GUESS))
    change(guess)
    found = fails(capsys, f"truth={truth}", f"predictions={guess}", "phases=cut,sew,close", "fps=2")
    assert re.search(message, found), found
    assert not (guess / "evaluation").exists()


def test_frames_that_are_numbered_otherwise(tmp_path: Path, capsys) -> None:
    truth = write_folder(tmp_path / "truth", TRUTH, step=25)
    guess = write_folder(tmp_path / "guess", GUESS, step=1)
    found = fails(capsys, f"truth={truth}", f"predictions={guess}", "fps=1")
    assert f"{guess / 'a.txt'}:2: frame 1; expected 25 as in {truth / 'a.txt'}" in found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["phases=cut,cut"], "phases=cut,cut: expected a file of `id name` lines, or different names"),
        (["fps=0"], "fps=0: expected a number from 0.001"),
        (["run=x"], "run= does not go with truth="),
        (["data.fps=1"], "data.fps=1 does not go with truth="),
    ],
)
def test_mistakes_about_folders(tmp_path: Path, arguments: list[str], message: str, capsys) -> None:
    folders = [f"truth={write_folder(tmp_path / 't', TRUTH)}", f"predictions={write_folder(tmp_path / 'p', GUESS)}"]
    assert message in fails(capsys, *folders, *arguments)


def test_names_without_a_list_are_asked_for(tmp_path: Path, capsys) -> None:
    truth, guess = write_folder(tmp_path / "t", named(TRUTH)), write_folder(tmp_path / "p", named(GUESS))
    found = fails(capsys, f"truth={truth}", f"predictions={guess}", "fps=1")
    assert f"{truth / 'a.txt'}:1: 'cut' is no id below 1000; name the phases in phases=" in found


def test_predictions_against_a_data_set(run: Path, sample: Path, tmp_path: Path, capsys) -> None:
    """By a run, by a config, from label files and from a run's own files: always the same scores."""
    entry = read_prediction(run / "predictions" / "video04.csv", PHASES)
    guess = write_folder(tmp_path / "guess", {"video04": [PHASES[phase] for phase in entry.prediction]})
    split = ["data.split.train=[1,2]", "data.split.val=[3]", "data.split.test=[4]"]
    sources = {
        "by run": [f"predictions={guess}", f"run={run}"],
        "by config": [f"predictions={guess}", "config=surgical_video.yaml", f"data.root={sample}", *split],
        "own files": [f"predictions={run / 'predictions'}", f"run={run}"],
        "predicted anew": [f"run={run}"],
    }
    records = []
    for name, arguments in sources.items():
        assert evaluate(*arguments, f"output={tmp_path / name}") == 0
        records.append(json.loads((tmp_path / name / "test.json").read_text())["scores"])
    assert all(record == records[0] for record in records)
    spoil(guess / "video04.txt", "\n", "\nPreparation\n")
    length = len(entry.truth)
    found = fails(capsys, f"predictions={guess}", f"run={run}")
    assert (
        f"video04.txt:{length + 1}: {length + 1} labels in all; expected {length}, one a frame as in the split" in found
    )
    assert "no file for video03; files for video04" in fails(capsys, f"predictions={guess}", f"run={run}", "split=val")
    assert "fps= goes with truth=" in fails(capsys, f"predictions={guess}", f"run={run}", "fps=1")


def test_nan_is_written_as_nothing(tmp_path: Path) -> None:
    truth = write_folder(tmp_path / "t", {"a": [0, 0]})
    guess = write_folder(tmp_path / "p", {"a": [0, 2]})
    assert evaluate(f"truth={truth}", f"predictions={guess}", "protocol=video") == 0
    rows = read_rows(guess / "evaluation" / "scores.csv")
    assert rows["video", "jaccard", "", "1"]["value"] == ""
    assert float(rows["video", "jaccard", "", "2"]["value"]) == 0
    assert "NaN" not in (guess / "evaluation" / "scores.json").read_text()
    assert np.isclose(float(rows["video", "accuracy", "", ""]["value"]), 50)
