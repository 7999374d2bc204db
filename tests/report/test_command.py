"""`seqckpt report`, and the report that training writes, on a run as it is and with parts missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import seqckpt.cli.report
from seqckpt.cli import main


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A run of one's own, its report not yet written."""
    folder = shutil.copytree(run, tmp_path / "trained")
    (folder / "report.html").unlink()
    return folder


def test_training_writes_a_report(run: Path) -> None:
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "<h1>trained</h1>" in page
    assert '"sheets":["/9j/' in page


def test_the_command_writes_the_same_as_training(run: Path, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", f"run={copy}"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{copy / 'report.html'} (")
    pages = [(folder / "report.html").read_text(encoding="utf-8").partition("<footer>") for folder in (run, copy)]
    assert pages[0][0] == pages[1][0]
    assert pages[0][2].partition("</footer>")[2] == pages[1][2].partition("</footer>")[2]


def test_data_that_has_moved_is_said(copy: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["report", f"run={copy}", f"data.root={tmp_path / 'gone'}"]) == 0
    assert "warning: no pictures of the frames: data.root=" in capsys.readouterr().err
    page = (copy / "report.html").read_text(encoding="utf-8")
    assert "There are no pictures of the frames: data.root=" in page
    assert '"sheets":[]' in page


def test_thumbnails_can_be_left_out(copy: Path) -> None:
    assert main(["report", f"run={copy}", "--no-thumbnails", "data.root=/nowhere"]) == 0
    page = (copy / "report.html").read_text(encoding="utf-8")
    assert "this file was written with --no-thumbnails" in page


def test_frames_of_other_videos_are_not_shown(copy: Path) -> None:
    """A prediction longer than the video there is now."""
    (path,) = (copy / "predictions").glob("*.csv")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, *lines[1:]]) + "\n")
    assert main(["report", f"run={copy}"]) == 0
    assert "the frames found are not those that were predicted" in (copy / "report.html").read_text(encoding="utf-8")


def test_a_run_without_a_finished_epoch(copy: Path) -> None:
    shutil.rmtree(copy / "predictions")
    for name in ("metrics.csv", "summary.json", "best.pt", "last.pt"):
        (copy / name).unlink()
    assert main(["report", f"run={copy}"]) == 0
    page = (copy / "report.html").read_text(encoding="utf-8")
    assert "There are no predictions" in page
    assert "There are no learning curves" in page
    assert "data.image_size" in page


def test_phases_are_taken_from_the_predictions_where_the_configuration_names_none(run: Path, copy: Path) -> None:
    before = (run / "report.html").read_text(encoding="utf-8")
    text = (copy / "config.yaml").read_text()
    start, stop = text.index("  phase_names:"), text.index("  ignored_labels:")
    (copy / "config.yaml").write_text(text[:start] + text[stop:])
    assert main(["report", f"run={copy}", "--no-thumbnails"]) == 0
    after = (copy / "report.html").read_text(encoding="utf-8")
    legend = before[before.index('<ul class="legend"') :].partition("</ul>")[0]
    assert legend in after


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "run= is missing"),
        (["run=nowhere"], "there is no such run"),
        (["run={copy}", "data.tial=1"], "did you mean data.tail"),
    ],
)
def test_mistakes_are_named(copy: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *(text.format(copy=copy) for text in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_a_damaged_prediction_is_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (copy / "predictions").glob("*.csv")
    path.write_text(path.read_text().replace(",Preparation,", ",Praparation,", 1))
    assert main(["report", f"run={copy}"]) == 2
    assert f"{path}, line 2" in capsys.readouterr().err
    assert not (copy / "report.html").exists()


def test_a_report_that_fails_does_not_fail_the_run(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> Path:
        raise RuntimeError("no room")

    monkeypatch.setattr(seqckpt.cli.report, "write_report", fail)
    monkeypatch.chdir(tmp_path)
    split = ["data.split.train=[1]", "data.split.val=[2]", "data.split.test=[3]"]
    settings = ["train.epochs=1", "data.image_size=32", "train.device=cpu"]
    assert main(["train", "config=surgical_video.yaml", f"data.root={sample}", "run=a", *split, *settings]) == 0
    said = capsys.readouterr()
    assert "warning: no report was written: RuntimeError: no room" in said.err
    assert said.out.splitlines()[-1].endswith(f"results in {Path('runs/a')}")
    assert (tmp_path / "runs" / "a" / "summary.json").exists()


def test_the_last_line_of_training_names_the_report(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that was at its end already, and goes on from there to its results."""
    monkeypatch.chdir(copy.parent)
    assert main(["train", f"resume={copy}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"results in {copy}; look at {copy / 'report.html'}")
    assert (copy / "report.html").exists()
