"""All recordings at once: cached or streamed, resumed, refused where there is no room, and usable after a failure."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from seqckpt.data import estimate_cache, frame_cache, sample_videos, sampling
from seqckpt.data.frame_cache import CachedFrames
from seqckpt.data.streamed_frames import StreamedFrames
from seqckpt.errors import DataError

SIZE = (16, 16)


@pytest.fixture
def films(tmp_path: Path, write_film: Callable[..., Path]) -> list[Path]:
    return [
        write_film(tmp_path / "films" / f"{name}.mp4", length) for name, length in {"a": 50, "b": 75, "c": 100}.items()
    ]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the recordings that are decoded into the cache."""
    calls: list[str] = []
    index = frame_cache.index_recording

    def count(path: Path, **options: Any) -> object:
        calls.append(path.name)
        return index(path, **options)

    monkeypatch.setattr(frame_cache, "index_recording", count)
    return calls


def sample(paths: list[Path], tmp_path: Path, **options: Any) -> list[frame_cache.SampledVideo]:
    options = {"fps": 5.0, "image_size": SIZE, "cache_dir": tmp_path / "cache", "progress": False, **options}
    return sample_videos(paths, **options)


def estimate(paths: list[Path], tmp_path: Path, **options: Any) -> sampling.CacheEstimate:
    return estimate_cache(paths, **{"fps": 5.0, "image_size": SIZE, "cache_dir": tmp_path / "cache", **options})


def test_cached_and_streamed_videos_are_alike(films: list[Path], tmp_path: Path) -> None:
    cached, streamed = sample(films, tmp_path), sample(films, tmp_path, cache_dir=None)
    assert [len(video.frames) for video in cached] == [10, 15, 20]
    for one, other in zip(cached, streamed, strict=True):
        assert isinstance(one.frames, CachedFrames)
        assert isinstance(other.frames, StreamedFrames)
        assert torch.equal(one.frames[:], other.frames[0 : len(other.frames)])
        assert one.numbers.tolist() == other.numbers.tolist()


def test_videos_and_folders_side_by_side(
    films: list[Path], tmp_path: Path, write_folder: Callable, read_number: Callable, decoded: list[str]
) -> None:
    folder = write_folder(tmp_path / "frames" / "case.v2.01", [f"{k}.png" for k in range(0, 250, 25)])
    for _ in range(2):
        one, two = sample([films[0], folder], tmp_path, fps=1.0, frame_rates=[None, 25])
        assert len(one.frames) == 2
        assert [read_number(row) for row in two.frames[:].numpy()] == list(range(10))
        assert (two.numbers.tolist(), two.num_frames) == (list(range(0, 250, 25)), 250)
    assert sorted(decoded) == ["a.mp4", "case.v2.01"]


@pytest.mark.parametrize("change", ["touched", "renamed", "removed", "rate"])
def test_a_changed_folder_is_decoded_again(
    change: str, tmp_path: Path, write_folder: Callable, decoded: list[str]
) -> None:
    folder = write_folder(tmp_path / "frames", [f"{k}.png" for k in range(5)])
    for _ in range(2):
        sample([folder], tmp_path, frame_rates=[5])
    assert len(decoded) == 1
    if change == "touched":
        os.utime(folder / "2.png", ns=(0, 1))
    elif change == "renamed":
        for k in range(5):
            (folder / f"{k}.png").rename(folder / f"img_{k}.png")
    elif change == "removed":
        (folder / "4.png").unlink()
    sample([folder], tmp_path, frame_rates=[6 if change == "rate" else 5])
    assert len(decoded) == 2


def test_the_estimate_is_near_and_says_what_is_missing(films: list[Path], tmp_path: Path) -> None:
    before = estimate(films, tmp_path)
    assert (before.num_videos, before.num_frames, before.num_bytes) == (3, 45, 45 * 3 * 256)
    assert (before.num_missing_videos, before.num_missing_frames) == (3, 45)
    assert before.free_bytes > 0
    assert "3 videos, about 45 frames, 33.8 KiB; to be made: 3 videos, 33.8 KiB (" in str(before)
    assert not (tmp_path / "cache").exists()
    sample(films[:2], tmp_path)
    after = estimate(films, tmp_path)
    assert (after.num_missing_videos, after.num_missing_bytes) == (1, 20 * 3 * 256)
    sample(films, tmp_path)
    assert str(estimate(films, tmp_path)).endswith("all there")
    assert estimate(films, tmp_path, fps=2.5).num_missing_videos == 3  # of another rate, nothing is there


def test_the_estimate_of_a_folder(tmp_path: Path, write_folder: Callable) -> None:
    folder = write_folder(tmp_path / "frames", [f"{k}.png" for k in range(0, 250, 25)])
    assert estimate([folder], tmp_path, fps=1.0, frame_rates=[25]).num_frames == 10


def test_no_room_is_an_error_before_anything_is_decoded(
    films: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[str]
) -> None:
    sample(films[:1], tmp_path)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6, 20_000))
    with pytest.raises(DataError, match=r"need about 26\.2 KiB more for 2 videos, .* has 19\.5 KiB free"):
        sample(films, tmp_path)
    assert decoded == ["a.mp4"]
    assert len(sample(films[:1], tmp_path)[0].frames) == 10
    sample(films, tmp_path, cache_dir=None)


def fail_on(monkeypatch: pytest.MonkeyPatch, name: str, error: Callable[[], None]) -> None:
    """Let reading of the recording of that name fail after three frames."""
    read = frame_cache.read_recording

    def rows(timeline: Any, *args: Any, **options: Any) -> Iterator[NDArray[np.uint8]]:
        for number, row in enumerate(read(timeline, *args, **options)):
            if timeline.path.name == name and number == 3:
                error()
            yield row

    monkeypatch.setattr(frame_cache, "read_recording", rows)


def disk_full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_one_error_and_finished_videos_stay(
    films: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[str]
) -> None:
    sample(films[:1], tmp_path)
    with monkeypatch.context() as patch:
        fail_on(patch, "b.mp4", disk_full)
        with pytest.raises(DataError, match=r"b\.mp4 cannot be written in .*no space left .* finished stay usable"):
            sample(films[:2], tmp_path)
    assert [path.name[0] for path in (tmp_path / "cache").iterdir()] == ["a"]  # nothing half-made either
    sample(films, tmp_path)
    assert decoded == ["a.mp4", "b.mp4", "b.mp4", "c.mp4"] or decoded == ["a.mp4", "b.mp4", "c.mp4", "b.mp4"]


def test_the_first_failure_stops_the_others_at_once(
    films: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error does not wait for a video that stands before it in the list: here one that waits for ever for it."""
    monkeypatch.setattr(sampling, "_count_cores", lambda: 2)
    stopped = threading.Event()
    cache = sampling.cache_video

    def watch(path: Path, *, stop: threading.Event, **options: Any) -> object:
        if path.name == "a.mp4":
            stopped.set() if stop.wait(timeout=60) else None
        return cache(path, stop=stop, **options)

    monkeypatch.setattr(sampling, "cache_video", watch)
    fail_on(monkeypatch, "b.mp4", disk_full)
    with pytest.raises(DataError, match=r"b\.mp4 cannot be written"):
        sample(films[:2], tmp_path)
    assert stopped.is_set()


def test_of_several_failures_the_first_in_the_list_is_told(films: list[Path], tmp_path: Path) -> None:
    for film in films:
        film.write_text("no video")
    for _ in range(20):
        with pytest.raises(DataError, match=r"a\.mp4 cannot be opened as a video"):
            sample(films, tmp_path)


def test_damage_that_was_repeated_is_an_error_for_who_wants_none(
    tmp_path: Path, write_folder: Callable, read_number: Callable, decoded: list[str]
) -> None:
    folder = write_folder(tmp_path / "frames", [f"{k}.png" for k in range(6)])
    for k in (2, 3):
        (folder / f"{k}.png").write_bytes(b"")
    options: dict[str, Any] = {"fps": 1.0, "frame_rates": [1]}
    with pytest.raises(DataError, match=r"2\.png cannot be decoded as an image \(0 bytes\)"):
        sample([folder], tmp_path, **options)
    for _ in range(2):
        (video,) = sample([folder], tmp_path, corrupt="repeat", **options)
        assert video.repeated == (2, 3)
        assert [read_number(row) for row in video.frames[:].numpy()] == [0, 1, 1, 1, 4, 5]
    with pytest.raises(DataError, match=r"2 of 6 sampled frames cannot be decoded, the first of them frame 2"):
        sample([folder], tmp_path, **options)
    assert len(decoded) == 2


def test_impossible_policies(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="corrupt is 'skip'; expected 'error' or 'repeat'"):
        sample([], tmp_path, corrupt="skip")
    assert sample([], tmp_path) == []
