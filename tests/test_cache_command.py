"""`seqckpt cache` on small real videos, and training that reads from its cache or streams."""

from __future__ import annotations

import csv
import errno
import os
from pathlib import Path

import pytest

from seqckpt.cli import main
from seqckpt.data import frame_cache, video_file

SPLIT = ("data.split.train=[1,2]", "data.split.val=[3]", "data.split.test=[4]")
SMALL = ("model.hidden_size=16", "data.image_size=32", "data.clip_length=50", "train.warmup=0", "train.epochs=2")


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def arguments(command: str, sample: Path, *more: str) -> list[str]:
    return [command, "config=surgical_video.yaml", f"data.root={sample}", *SPLIT, *SMALL, "data.cache_dir=cache", *more]


def losses(run: str) -> list[float]:
    with open(Path("runs", run, "steps.csv"), newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def test_the_cache_is_filled_once(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments("cache", sample)) == 0
    first = capsys.readouterr().out
    assert f"frame cache in {Path.cwd() / 'cache'}: 4 videos, about 2" in first
    assert "to be made: 4 videos" in first
    assert "4 videos with 2" in first
    before = {path.name: path.stat().st_mtime_ns for path in Path("cache").iterdir()}
    assert len(before) == 4
    assert main(arguments("cache", sample)) == 0
    assert "all there" in capsys.readouterr().out
    assert {path.name: path.stat().st_mtime_ns for path in Path("cache").iterdir()} == before


def test_another_size_or_rate_is_noticed(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for change in ("data.image_size=32", "data.image_size=16", "data.fps=0.5"):
        assert main(arguments("cache", sample, change)) == 0
        assert "to be made: 4 videos" in capsys.readouterr().out, change
    assert len(list(Path("cache").iterdir())) == 12


def test_a_full_disk_is_one_line(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(frame_cache, "_write_cache", fail)
    assert main(arguments("cache", sample)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: the frame cache of ")
    assert "no space left on the device" in error
    assert list(Path("cache").iterdir()) == []


def test_training_streams_what_it_would_read_from_the_cache(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loss is the same, bit for bit, and no cache is made."""
    assert main(arguments("train", sample, "data.cache=none", "run=streamed")) == 0
    assert not Path("cache").exists()
    assert main(arguments("cache", sample)) == 0
    monkeypatch.setattr(video_file, "_decode", lambda *args, **options: pytest.fail("decoded"))
    assert main(arguments("train", sample, "run=cached")) == 0
    assert losses("streamed") == losses("cached")


def test_lanes_whole_videos_and_augmentation_are_there_to_choose(sample: Path) -> None:
    for name, more in {
        "lanes": ("data.order=sequential", "train.batch_size=2"),
        "whole": ("data.clip_length=video", "train.batch_size=2"),
        "augmented": ("data.augment.flip=1", "data.augment.smallest_crop=0.5", "data.augment.brightness=0.3"),
        "plain": (),
    }.items():
        assert main(arguments("train", sample, f"run={name}", *more)) == 0
    assert len(losses("lanes")) == 2 * 2  # two lanes of two clips each, twice
    assert len(losses("whole")) == 2
    assert len(losses("augmented")) == len(losses("plain")) == 2 * 4
    assert losses("augmented")[0] != losses("plain")[0]
