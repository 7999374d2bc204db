"""The frame cache: decoded once, noticed when damaged or stale, written whole or not at all."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from seqckpt.atomic import new_file
from seqckpt.data import frame_cache
from seqckpt.data.frame_cache import SampledVideo, Stopped, cache_path, cache_video
from seqckpt.data.timeline import choose_frames
from seqckpt.data.video_file import index_video, read_frames
from seqckpt.errors import DataError

SIZE = (16, 24)


@pytest.fixture
def film(tmp_path: Path, write_film: Callable[..., Path]) -> Path:
    return write_film(tmp_path / "films" / "film.mp4", 60)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The videos that the decoder has been asked for, as they are asked for."""
    calls: list[Path] = []
    index = frame_cache.index_recording

    def count(path: Path, **options: object) -> object:
        calls.append(path)
        return index(path, **options)

    monkeypatch.setattr(frame_cache, "index_recording", count)
    return calls


def read(film: Path, tmp_path: Path, fps: float = 5.0, size: tuple[int, int] = SIZE) -> SampledVideo:
    return cache_video(film, fps=fps, image_size=size, cache_dir=tmp_path / "cache")


def cached_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache").iterdir()
    return path


def test_frames_are_the_decoders_own(film: Path, tmp_path: Path) -> None:
    index = index_video(film)
    numbers = choose_frames(index, 5.0)
    expected = torch.from_numpy(np.stack(list(read_frames(index, numbers, image_size=SIZE))))
    for video in (read(film, tmp_path), read(film, tmp_path)):  # just made, and opened again
        assert len(video.frames) == 12
        assert torch.equal(video.frames[0:12], expected)
        assert video.numbers.tolist() == numbers.tolist()
        assert (video.num_frames, video.duration_seconds) == (60, 2.4)


def test_a_second_read_does_not_touch_the_decoder(film: Path, tmp_path: Path, decoded: list[Path]) -> None:
    for _ in range(3):
        read(film, tmp_path).frames[2:5]
    assert decoded == [film]


def test_slices_are_those_of_a_list(film: Path, tmp_path: Path) -> None:
    frames = read(film, tmp_path).frames
    whole = frames[:]
    for part in (slice(3, 7), slice(-2, None), slice(5, 2), slice(0, 99), slice(12, 20)):
        assert torch.equal(frames[part], whole[part])
    with pytest.raises(ValueError, match="step 2"):
        frames[::2]
    with pytest.raises(TypeError, match="by slice"):
        frames[3]  # type: ignore[index]


def test_what_is_read_may_be_written_to(film: Path, tmp_path: Path) -> None:
    frames = read(film, tmp_path).frames
    before = frames[0:2].clone()
    frames[0:2].zero_()
    assert torch.equal(frames[0:2], before)


def test_a_source_can_be_sent_to_another_process(film: Path, tmp_path: Path) -> None:
    frames = read(film, tmp_path).frames
    sent = pickle.dumps(frames)
    assert len(sent) < 1000
    assert torch.equal(pickle.loads(sent)[1:4], frames[1:4])


def test_each_size_and_rate_has_its_own(film: Path, tmp_path: Path, decoded: list[Path]) -> None:
    for fps, size in ((5.0, (16, 16)), (2.5, (16, 16)), (5.0, (16, 24)), (5.0, (24, 16))):
        for _ in range(2):
            assert tuple(read(film, tmp_path, fps, size).frames[:].shape) == (int(2.4 * fps), 3, *size)
    assert len(decoded) == 4


def test_a_changed_video_is_decoded_again(
    film: Path, tmp_path: Path, write_film: Callable[..., Path], read_number: Callable[..., int], decoded: list[Path]
) -> None:
    assert read_number(read(film, tmp_path, size=(16, 16)).frames[1:2][0].numpy()) == 5
    write_film(film, 60, first_frame=100)
    assert read_number(read(film, tmp_path, size=(16, 16)).frames[1:2][0].numpy()) == 105
    assert len(decoded) == 2


def test_a_touched_video_is_decoded_again(film: Path, tmp_path: Path, decoded: list[Path]) -> None:
    read(film, tmp_path)
    os.utime(film, ns=(0, film.stat().st_mtime_ns + 1))
    read(film, tmp_path)
    assert len(decoded) == 2


def test_a_moved_folder_keeps_its_cache(film: Path, tmp_path: Path, decoded: list[Path]) -> None:
    read(film, tmp_path)
    film.parent.rename(tmp_path / "elsewhere")
    read(tmp_path / "elsewhere" / film.name, tmp_path)
    assert decoded == [film]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "empty": lambda content: b"",
    "eight bytes": lambda content: content[:8],
    "another file": lambda content: b"something else" * 1000,
    "header changed": lambda content: content[:40] + b"7" + content[41:],
    "first frame changed": lambda content: content[:4100] + bytes([content[4100] ^ 1]) + content[4101:],
    "last byte changed": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "zeros at the end": lambda content: content[:-5000] + bytes(5000),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed_and_made_good(
    damage: str, film: Path, tmp_path: Path, decoded: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    expected = read(film, tmp_path).frames[:]
    path = cached_file(tmp_path)
    content = path.read_bytes()
    path.write_bytes(DAMAGES[damage](content))
    with caplog.at_level(logging.WARNING):
        assert torch.equal(read(film, tmp_path).frames[:], expected)
    assert len(decoded) == 2
    assert f"{path} is damaged" in caplog.text
    assert path.read_bytes() == content


def test_a_cache_that_vanishes_in_use_is_a_clear_error(film: Path, tmp_path: Path) -> None:
    frames = read(film, tmp_path).frames
    cached_file(tmp_path).unlink()
    with pytest.raises(DataError, match="the frame cache is gone"):
        frames[0:1]


def interrupt_after(
    monkeypatch: pytest.MonkeyPatch, num_rows: int, act: Callable[[], None]
) -> Callable[..., Iterator[NDArray[np.uint8]]]:
    rows_of = frame_cache.read_recording

    def rows(*args: object, **options: object) -> Iterator[NDArray[np.uint8]]:
        for number, row in enumerate(rows_of(*args, **options)):  # type: ignore[arg-type]
            if number == num_rows:
                act()
            yield row

    monkeypatch.setattr(frame_cache, "read_recording", rows)
    return rows


class Interruption(BaseException):
    pass


def fail(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def test_an_interruption_leaves_nothing(film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(monkeypatch, 3, fail(Interruption()))
    with pytest.raises(Interruption):
        read(film, tmp_path)
    assert os.listdir(tmp_path / "cache") == []


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_what_dead_processes_left_of_any_video_is_removed_and_what_is_being_written_stays(
    film: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    read(film, tmp_path)
    (whole,) = cache.iterdir()
    (cache / f".{whole.name}.1234abcd.partial").touch()
    (cache / ".other-64x64-1fps-0123.frames.5678abcd.partial").touch()
    with new_file(cache / "another-64x64-1fps-0123.frames"):
        read(film, tmp_path)
        names = {path.name.partition("-")[0] for path in cache.iterdir()}
    assert names == {whole.name.partition("-")[0], ".another"}


def test_another_thread_can_stop_it(film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    interrupt_after(monkeypatch, 3, stop.set)
    with pytest.raises(Stopped):
        cache_video(film, fps=5.0, image_size=SIZE, cache_dir=tmp_path / "cache", stop=stop)
    assert os.listdir(tmp_path / "cache") == []


def test_a_full_disk_leaves_what_was_finished(
    film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_film: Callable[..., Path], decoded: list[Path]
) -> None:
    read(film, tmp_path)
    other = write_film(tmp_path / "films" / "other.mp4", 60)
    interrupt_after(monkeypatch, 3, fail(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(
        DataError, match=r"other\.mp4 cannot be written in .*cache: no space left on the device \(.*free"
    ):
        read(other, tmp_path)
    read(film, tmp_path)
    assert decoded == [film, other]


def test_a_place_that_cannot_be_written_is_said(film: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(
        DataError, match=r"cannot be written in .*cache: .*name a folder that can be written with cache_"
    ):
        read(film, tmp_path)


def test_a_video_that_cannot_be_decoded_leaves_no_cache(tmp_path: Path) -> None:
    film = tmp_path / "film.mp4"
    film.write_text("no video")
    with pytest.raises(DataError, match=r"film\.mp4 cannot be opened as a video"):
        read(film, tmp_path)
    assert list(tmp_path.iterdir()) == [film]


def test_the_place_names_video_size_and_rate(film: Path, tmp_path: Path) -> None:
    place = cache_path(film, fps=29.97, image_size=(36, 64), cache_dir=tmp_path)
    assert place.name.startswith("film-64x36-29.97fps-")
    with pytest.raises(DataError, match=r"absent\.mp4 cannot be opened"):
        cache_path(tmp_path / "absent.mp4", fps=1.0, image_size=SIZE, cache_dir=tmp_path)


def test_recordings_alike_in_name_size_and_time_have_caches_of_their_own(
    tmp_path: Path, write_images: Callable[..., Path]
) -> None:
    places = []
    for number, site in enumerate(["a", "b"]):
        folder = write_images(tmp_path / site / "case", {f"{k}.bmp": 10 * number + k for k in range(3)})
        for path in folder.iterdir():
            os.utime(path, (0, 0))
        os.utime(folder / "1.bmp", (0, 0))
        for path in (folder, folder / "1.bmp"):
            rate = 1.0 if path.is_dir() else None
            places.append(cache_path(path, fps=1, image_size=(8, 8), cache_dir=tmp_path, frame_rate=rate))
    assert len(set(places)) == 4
