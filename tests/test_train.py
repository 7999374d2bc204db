"""The main job on small real video files: results, the plain twin, mistakes of the user's, Ctrl-C."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from seqckpt.cli import main

SPLIT = ("data.split.train=[1,2]", "data.split.val=[3]", "data.split.test=[4]")
SMALL = ("model.hidden_size=16", "data.image_size=32", "data.clip_length=50", "train.warmup=0")


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def arguments(sample: Path, *more: str) -> list[str]:
    return ["train", "config=surgical_video.yaml", f"data.root={sample}", *SPLIT, *SMALL, *more]


def losses(run: Path) -> list[float]:
    with open(run / "steps.csv", newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def test_a_run_leaves_all_its_results(sample: Path) -> None:
    assert main(arguments(sample, "run=all", "train.epochs=2")) == 0
    run = Path("runs/all")
    summary = json.loads((run / "summary.json").read_text())
    expected = {"test_accuracy", "test_jaccard", "num_videos", "num_steps", "frames_per_second", "peak_memory_bytes"}
    assert expected | {"elapsed_seconds", "config_name", "torch_version", "device"} <= summary.keys()
    assert summary["num_videos"] == 4
    assert summary["num_steps"] == len(losses(run))
    assert 0 <= summary["test_accuracy"] <= 1
    assert summary["config_name"] == "surgical_video"
    for name in ("config.yaml", "metrics.csv", "ribbons.png", "curves.png"):
        assert (run / name).stat().st_size > 0, name
    for name in ("last.pt", "best.pt"):
        assert "model" in torch.load(run / name, weights_only=True)
    with open(run / "predictions" / "video04.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows[0]) == 3 + 7  # second, true and predicted phase, a probability for each of the seven
    assert 60 <= len(rows) - 1 <= 71  # one row per sampled second
    assert all(sum(map(float, row[3:])) == pytest.approx(1, abs=1e-3) for row in rows[1:])
    right = sum(row[1] == row[2] for row in rows[1:])
    assert summary["test_accuracy"] == pytest.approx(right / (len(rows) - 1))


def test_plain_and_checkpointed_runs_have_one_loss_curve(sample: Path) -> None:
    small_pieces = ("memory.chunk_size=7", "memory.segment_length=9")
    common = ("train.epochs=3", "model.num_layers=2", "model.dropout=0.3")
    assert main(arguments(sample, "run=checkpointed", *common, *small_pieces)) == 0
    assert main(arguments(sample, "run=plain", *common, "memory.enabled=false")) == 0
    checkpointed, plain = losses(Path("runs/checkpointed")), losses(Path("runs/plain"))
    assert len(plain) == len(checkpointed) >= 10
    assert checkpointed[:10] == pytest.approx(plain[:10], rel=1e-4)  # float32: kernels round differently by size
    assert plain[0] != plain[9]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("memory.chunk_size=0",), ["memory.chunk_size", "0"]),
        (("memory.segment_lenght=3",), ["segment_lenght", "segment_length"]),
        (("train.epochs=abc", "train.lr=-1", "model.rnn=lstmm"), ["train.epochs", "train.lr", "model.rnn"]),
        (("memory.enabled=maybe",), ["memory.enabled"]),
        (("model.encoder=resnet19",), ["resnet19", "resnet18"]),
        (("data.split.test=[3]",), ["video03"]),
        (("data.split.test=[9]",), ["video 9"]),
        (("data.split.val=[]",), ["val"]),
        (("data.root=nowhere",), ["nowhere", "phase_annotations"]),
        (("model.weights=nowhere.pt", "train.class_weights=foo"), ["nowhere.pt", "foo"]),
        (("train.seed=99999999999999999999999",), ["train.seed"]),
        (("data.fps=1e-9",), ["data.fps"]),
        (("data.image_size=100000",), ["data.image_size"]),
        (("model.encoder=alexnet", "data.image_size=16"), ["data.image_size=16"]),
        (("run=" + "x" * 300,), ["run=", "300"]),
    ],
)
def test_a_mistake_is_one_message_and_leaves_nothing(
    sample: Path, more: tuple[str, ...], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(sample, *more)) == 2
    shown = capsys.readouterr().err
    assert all(word in shown for word in words), shown
    assert "Traceback" not in shown
    assert not Path("runs").exists()


@pytest.mark.parametrize("given", [[], ["config=nothere.yaml"]])
def test_without_a_config_the_known_ones_are_listed(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *given]) == 2
    assert "surgical_video.yaml" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_what_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "config=surgical_video.yaml", "data.root=nowhere"]) == 2
    shown = capsys.readouterr().err
    assert "nowhere" in shown
    assert "phase_annotations" in shown


def test_a_folder_that_is_not_there_is_named_before_weights_are_fetched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*unused: object, **options: object) -> None:
        raise AssertionError("weights were fetched")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", fetch)
    monkeypatch.setattr(torch.hub, "download_url_to_file", fetch)
    assert main(["train", "config=cholec80.yaml", "data.root=nowhere"]) == 2
    shown = capsys.readouterr().err
    assert "nowhere" in shown
    assert "phase_annotations" in shown


def test_damaged_data_is_a_message(sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "damaged"
    (root / "videos").mkdir(parents=True)
    (root / "phase_annotations").mkdir()
    for number in range(1, 5):
        (root / "videos" / f"video{number:02}.mp4").write_text("this is text")
        name = f"video{number:02}-phase.txt"
        (root / "phase_annotations" / name).write_text((sample / "phase_annotations" / name).read_text())
    assert main(arguments(root)) == 2
    said = capsys.readouterr().err
    assert all(f"video{number:02}.mp4 cannot be opened" in said for number in range(1, 5))  # all of them at once
    (root / "phase_annotations" / "video02-phase.txt").write_text("Frame\tPhase\n0\tPreparation\n1\tLunch\n")
    assert main(arguments(root)) == 2
    shown = capsys.readouterr().err
    assert "video02-phase.txt:3" in shown
    assert "Lunch" in shown
    assert not Path("runs").exists()


def test_a_run_is_never_overwritten(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/taken").mkdir(parents=True)
    (Path("runs/taken") / "last.pt").write_text("mine")
    assert main(arguments(sample, "run=taken", "train.epochs=1")) == 2
    assert "taken" in capsys.readouterr().err
    assert (Path("runs/taken") / "last.pt").read_text() == "mine"


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
def test_ctrl_c_saves_and_ends(sample: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "seqckpt", *arguments(sample, "run=stopped", "train.epochs=10000")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "runs" / "stopped" / "metrics.csv"
    deadline = time.monotonic() + 120
    while not metrics.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 130, shown
    assert "Traceback" not in shown
    assert "model" in torch.load(metrics.parent / "last.pt", weights_only=True)
    assert not list(metrics.parent.glob(".*"))  # what is being written has a hidden name
