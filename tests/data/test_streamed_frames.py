"""Frames decoded when they are read are those of the cache, in whatever order they are read."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from seqckpt.data import Video, clip_loader, cut_clips, video_file
from seqckpt.data.frame_cache import cache_video
from seqckpt.data.streamed_frames import StreamedFrames, stream_video
from seqckpt.errors import DataError

SIZE = (16, 24)
Film = Callable[..., Path]
FILMS: dict[str, Callable[[Film, Path], Path]] = {
    "25 fps": lambda write, path: write(path / "a.mp4", 100),
    "29.97 fps": lambda write, path: write(path / "a.mp4", 100, Fraction(30000, 1001)),
    "30 fps, B-frames": lambda write, path: write(path / "a.mp4", 100, 30, options={"g": "10", "bf": "3"}),
    "one long group": lambda write, path: write(path / "a.mp4", 100, options={"g": "250", "bf": "3"}),
    "open groups": lambda write, path: write(
        path / "a.mp4", 100, options={"x264-params": "open-gop=1:keyint=12:bframes=3"}
    ),
    "from 0.04 s": lambda write, path: write(
        path / "a.mp4", 60, stamps=range(1, 61), time_base=Fraction(1, 25), options={"bf": "2"}
    ),
    "variable rate": lambda write, path: write(
        path / "a.mp4",
        80,
        50,
        stamps=np.cumsum(np.random.default_rng(0).integers(1, 9, 80)).tolist(),
        time_base=Fraction(1, 50),
    ),
}


def stream(path: Path, fps: float = 10.0, **options: object) -> StreamedFrames:
    frames = stream_video(path, fps=fps, image_size=SIZE, **options).frames  # type: ignore[arg-type]
    assert isinstance(frames, StreamedFrames)
    return frames


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The videos that are opened, as they are."""
    calls: list[Path] = []
    open_video = video_file._open

    def count(path: Path) -> object:
        calls.append(path)
        return open_video(path)

    monkeypatch.setattr(video_file, "_open", count)
    return calls


@pytest.mark.parametrize("kind", FILMS)
@pytest.mark.parametrize("fps", [2.5, 25.0])
def test_every_chunk_in_every_order_is_that_of_the_cache(
    kind: str, fps: float, tmp_path: Path, write_film: Film
) -> None:
    path = FILMS[kind](write_film, tmp_path)
    cached = cache_video(path, fps=fps, image_size=SIZE, cache_dir=tmp_path / "cache")
    streamed = stream_video(path, fps=fps, image_size=SIZE)
    assert streamed.numbers.tolist() == cached.numbers.tolist()
    assert (streamed.num_frames, streamed.duration_seconds) == (cached.num_frames, cached.duration_seconds)
    whole = cached.frames[0 : len(cached.frames)]
    assert len(streamed.frames) == len(whole)
    starts = list(range(0, len(whole), 7))
    for start in [*starts, *reversed(starts), *starts[::3], *starts[:2]]:
        assert torch.equal(streamed.frames[start : start + 7], whole[start : start + 7]), start


def test_slices_are_those_of_a_list(tmp_path: Path, write_film: Film) -> None:
    frames = stream(write_film(tmp_path / "a.mp4", 50))
    whole = frames[:]
    assert (whole.shape, whole.dtype) == ((20, 3, *SIZE), torch.uint8)
    for part in (slice(3, 7), slice(-2, None), slice(5, 2), slice(0, 99), slice(12, 20)):
        assert torch.equal(frames[part], whole[part])
    with pytest.raises(ValueError, match="step 2"):
        frames[::2]
    with pytest.raises(TypeError, match="by slice"):
        frames[3]  # type: ignore[index]


def test_a_forward_pass_opens_the_file_once(tmp_path: Path, write_film: Film, opened: list[Path]) -> None:
    frames = stream(write_film(tmp_path / "a.mp4", 100), fps=25.0)
    del opened[:]
    for start in range(0, 100, 10):
        frames[start : start + 10]
    assert len(opened) == 1
    for start in range(80, -1, -10):  # backward: once for each chunk
        frames[start : start + 10]
    assert len(opened) == 10


def test_listing_the_frames_decodes_none(tmp_path: Path, write_film: Film, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_file, "_decode", lambda *args, **options: pytest.fail("decoded"))
    assert len(stream(write_film(tmp_path / "a.mp4", 100))) == 40


def test_a_source_can_be_sent_to_another_process(tmp_path: Path, write_film: Film) -> None:
    frames = stream(write_film(tmp_path / "a.mp4", 50))
    frames[0:3]
    sent = pickle.loads(pickle.dumps(frames))
    assert torch.equal(sent[3:6], frames[3:6])


def test_forked_workers_read_for_themselves(tmp_path: Path, write_film: Film) -> None:
    """A decoder that a child inherits shares its place in the file with the parent's."""
    frames = stream(write_film(tmp_path / "a.mp4", 200), fps=25.0)
    whole = frames[0:200]
    labels = torch.zeros(200, dtype=torch.int64)
    clips = cut_clips([Video("a", frames, np.arange(200.0), labels, None, tmp_path)], 20)
    frames[0:20]  # the decoder stands where the second clip begins
    loader = clip_loader([[clip] for clip in clips[1:]], seed=0, epoch=0, num_workers=2)
    for k, (clip,) in enumerate(loader):
        assert torch.equal(clip.frames[0:20], whole[clip.start : clip.stop])
        assert torch.equal(frames[20 * k + 20 : 20 * k + 40], whole[20 * k + 20 : 20 * k + 40])


def test_a_folder_of_images_streams_too(tmp_path: Path, write_folder: Callable, read_number: Callable) -> None:
    folder = write_folder(tmp_path / "frames", [f"{k}.png" for k in range(0, 250, 25)])
    video = stream_video(folder, fps=1.0, image_size=(16, 16), frame_rate=25)
    assert [read_number(row) for row in video.frames[3:9].numpy()] == list(range(3, 9))
    assert [read_number(row) for row in video.frames[0:3].numpy()] == list(range(3))
    assert (video.numbers.tolist(), video.num_frames) == (list(range(0, 250, 25)), 250)


def test_a_file_that_vanishes_is_a_clear_error(tmp_path: Path, write_film: Film) -> None:
    path = write_film(tmp_path / "a.mp4", 50)
    frames = stream(path)
    path.unlink()
    with pytest.raises(DataError, match=r"a\.mp4 cannot be opened"):
        frames[0:3]


def read_numbers(frames: Tensor, read_number: Callable[..., int]) -> list[int]:
    return [read_number(row) for row in frames.numpy()]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_damaged_repeats_the_last_good_frame_wherever_reading_begins(
    seed: int,
    tmp_path: Path,
    write_film: Film,
    damage_stretch: Callable[..., None],
    read_number: Callable[..., int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Corrupt: repeat. No later label is shifted; the cache and every order of reading agree; the damage is said."""
    path = write_film(tmp_path / "a.mp4", 200, container_options={"movflags": "+faststart"})
    damage_stretch(path, seed, num_bytes=600)
    options = {"fps": 25.0, "image_size": (16, 16), "corrupt": "repeat"}
    cached = cache_video(path, cache_dir=tmp_path / "cache", **options)  # type: ignore[arg-type]
    whole = cached.frames[0:200]
    expected = []
    for k in range(200):
        expected.append(expected[-1] if k in cached.repeated else k)
    assert read_numbers(whole, read_number) == expected
    assert 0 < len(cached.repeated) < 120
    with caplog.at_level(logging.WARNING):
        for size in (200, 13, 1):
            frames = stream_video(path, **options).frames  # type: ignore[arg-type]
            starts = range(0, 200, size) if size > 1 else [*cached.repeated[::9], 199]
            for start in [*reversed(starts), *starts]:
                assert torch.equal(frames[start : start + size], whole[start : start + size]), (size, start)
    assert "a.mp4 is damaged at" in caplog.text


def test_damage_is_an_error_otherwise(tmp_path: Path, write_film: Film, damage_stretch: Callable[..., None]) -> None:
    path = write_film(tmp_path / "a.mp4", 200, container_options={"movflags": "+faststart"})
    damage_stretch(path, 0, num_bytes=600)
    frames = stream(path, fps=25.0)
    with pytest.raises(DataError, match=r"a\.mp4 cannot be decoded throughout: .*data\.corrupt=repeat"):
        frames[0:200]
    assert len(frames[0:20]) == 20


def test_where_there_is_nothing_to_repeat(tmp_path: Path, write_folder: Callable) -> None:
    folder = write_folder(tmp_path / "frames", ["1.png", "2.png"])
    (folder / "1.png").write_bytes(b"")
    frames = stream(folder, fps=1.0, frame_rate=1, corrupt="repeat")
    with pytest.raises(DataError, match=r"shown at 0\.00 s cannot be decoded, and there is none before it"):
        frames[0:2]
