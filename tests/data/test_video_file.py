"""Which frame is shown when, and that it is this one which comes out: every picture spells its own number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from seqckpt.data import video_file
from seqckpt.data.timeline import choose_frames
from seqckpt.data.video_file import VideoIndex, index_video, read_frames
from seqckpt.errors import DataError

NTSC = Fraction(30000, 1001)
LAYOUTS = {
    "default": {},
    "a key frame per frame": {"g": "1"},
    "short groups with B-frames": {"g": "5", "bf": "3"},
    "one long group": {"g": "250", "bf": "3"},
    "open groups": {"x264-params": "open-gop=1:keyint=12:bframes=3"},
    "no B-frames": {"bf": "0"},
}


@pytest.fixture
def read_film(read_number: Callable[..., int]) -> Callable[..., list[int]]:
    """A function from a film to the numbers that its sampled pictures spell."""

    def read(path: Path, fps: float, image_size: tuple[int, int] = (64, 64)) -> list[int]:
        index = index_video(path)
        rows = read_frames(index, choose_frames(index, fps), image_size=image_size)
        return [read_number(row) for row in rows]

    return read


def shown_at(times: list[Fraction], end: Fraction, fps: Fraction) -> list[int]:
    """By hand: the last frame that has begun at n / fps after the first one, for each such moment before the end."""
    numbers, n = [], 0
    while n / fps < end - times[0]:
        numbers.append(max(k for k, time in enumerate(times) if time - times[0] <= n / fps))
        n += 1
    return numbers


@pytest.mark.parametrize(
    ("rate", "layout"),
    [*((Fraction(25), layout) for layout in LAYOUTS), *((rate, "default") for rate in (NTSC, Fraction(30)))],
    ids=[*LAYOUTS, "29.97 fps", "30 fps"],
)
def test_the_frame_shown_at_each_moment(
    rate: Fraction, layout: str, tmp_path: Path, write_film: Callable[..., Path], read_film: Callable[..., list[int]]
) -> None:
    path = write_film(tmp_path / "film.mp4", 100, rate, options=LAYOUTS[layout])
    times = [k / rate for k in range(100)]
    for fps in (0.3, 1, 7.5, 50):
        assert read_film(path, fps) == shown_at(times, 100 / rate, Fraction(str(fps)))


def test_ntsc_slips_one_frame_behind_counting(
    tmp_path: Path, write_film: Callable[..., Path], read_film: Callable[..., list[int]]
) -> None:
    """After 1001 seconds of 29.97 fps "every 30th frame" is one second off; slower films show it sooner."""
    path = write_film(tmp_path / "film.mp4", 300, Fraction(3000, 1001))
    assert read_film(path, 1)[:4] == [0, 2, 5, 8]  # not 0, 3, 6, 9: frame 3 is shown at 1.001 s


@pytest.mark.parametrize("start", [1, 7])
def test_time_counts_from_the_first_frame(
    start: int, tmp_path: Path, write_film: Callable[..., Path], read_film: Callable[..., list[int]]
) -> None:
    stamps = range(start, start + 60)  # 0.04 s and 0.28 s
    path = write_film(tmp_path / "film.mp4", 60, stamps=stamps, time_base=Fraction(1, 25))
    assert index_video(path).stamps[0] > 0
    assert read_film(path, 5) == list(range(0, 60, 5))


@given(
    gaps=st.lists(st.integers(1, 200), min_size=1, max_size=15),
    start=st.integers(0, 100),
    last=st.integers(1, 400),
    fps=st.sampled_from([0.5, 1.0, 3.0, 24.0, 29.97]),
)
def test_choosing_is_exact_at_a_variable_rate(gaps: list[int], start: int, last: int, fps: float) -> None:
    """Whole milliseconds: the last frame that has begun, however near the next one is."""
    stamps = start + np.cumsum([0, *gaps])
    base = Fraction(1, 1000)
    index = VideoIndex(Path("film.mp4"), stamps, int(stamps[-1]) + last, base, stamps[:1], 64, 64)
    since, distance = (stamps - start).tolist(), 1000 / Fraction(str(fps))
    expected: list[int] = []
    while (moment := len(expected) * distance) < since[-1] + last:
        expected.append(max(k for k, stamp in enumerate(since) if stamp <= moment))
    assert choose_frames(index, fps).tolist() == expected


@pytest.mark.parametrize("seed", range(4))
def test_a_variable_rate_file(
    seed: int, tmp_path: Path, write_film: Callable[..., Path], read_film: Callable[..., list[int]]
) -> None:
    stamps = np.cumsum(np.random.default_rng(seed).integers(1, 9, 80)).tolist()
    path = write_film(tmp_path / "film.mp4", 80, 50, stamps=stamps, time_base=Fraction(1, 50))
    index = index_video(path)
    end = index.end * index.time_base
    assert read_film(path, 4) == shown_at([Fraction(stamp, 50) for stamp in stamps], end, Fraction(4))


def test_stamps_rounded_to_milliseconds(
    tmp_path: Path, write_film: Callable[..., Path], read_film: Callable[..., list[int]]
) -> None:
    """24 fps in Matroska: frame 1 belongs at 41.67 ms and says 42; at 24 samples a second it is sample 1."""
    path = write_film(tmp_path / "film.mkv", 48, 24)
    assert index_video(path).time_base == Fraction(1, 1000)
    assert read_film(path, 24) == list(range(48))


def test_skipping_decodes_few_frames(
    tmp_path: Path,
    write_film: Callable[..., Path],
    read_film: Callable[..., list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Key frames each second, a sample each 5 s: some frames of 5 groups of 25, not all 625."""
    path = write_film(tmp_path / "film.mp4", 625)
    decoded = []
    decode_packets = video_file._decode_packets

    def count(*args: object) -> Iterator[av.VideoFrame]:
        for frame in decode_packets(*args):  # type: ignore[arg-type]
            decoded.append(frame.pts)
            yield frame

    monkeypatch.setattr(video_file, "_decode_packets", count)
    assert read_film(path, 0.2) == [0, 125, 250, 375, 500]
    assert len(decoded) <= 5 * 3


def test_reading_without_skipping_is_the_fallback(
    tmp_path: Path,
    write_film: Callable[..., Path],
    read_film: Callable[..., list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A seek that lands too late must not lose frames: what is missing is looked for from the start."""
    path = write_film(tmp_path / "film.mp4", 200)
    key_before = video_file._key_before
    monkeypatch.setattr(video_file, "_key_before", lambda index, stamp: key_before(index, stamp + 25 * 512))
    assert read_film(path, 1) == list(range(0, 200, 25))


def test_a_faulty_table_of_times_falls_back_to_decoding(
    tmp_path: Path, write_film: Callable[..., Path], read_film: Callable[..., list[int]]
) -> None:
    """AVI keeps no presentation times: its packets have decoding times at best."""
    path = write_film(tmp_path / "film.avi", 50, 25, options={"bf": "0"})
    assert read_film(path, 5) == list(range(0, 50, 5))


@pytest.mark.parametrize("image_size", [(64, 64), (16, 16), (8, 32), (128, 96)])
def test_frames_are_resized_on_the_way(
    image_size: tuple[int, int], tmp_path: Path, write_film: Callable[..., Path], read_number: Callable[..., int]
) -> None:
    index = index_video(write_film(tmp_path / "film.mp4", 30))
    rows = list(read_frames(index, np.array([3, 3, 17]), image_size=image_size))
    assert [row.shape for row in rows] == [(3, *image_size)] * 3
    assert {row.dtype for row in rows} == {np.dtype(np.uint8)}
    assert [read_number(row) for row in rows] == [3, 3, 17]


def test_colours_are_red_green_blue_in_this_order(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        picture = np.full((64, 64, 3), (200, 100, 30), np.uint8)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    (row,) = read_frames(index_video(path), np.array([0]), image_size=(64, 64))
    assert np.abs(row.mean((1, 2)) - [200, 100, 30]).max() < 8


@pytest.mark.parametrize("name", ["Vidéos été/Операция 1/胆嚢 01.mp4", "with blank/case.v2.01.MP4", "a%20b#?.mp4"])
def test_names_of_every_kind(
    name: str, tmp_path: Path, write_film: Callable[..., Path], read_film: Callable[..., list[int]]
) -> None:
    film = write_film(tmp_path / "film.mp4", 50)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    film.rename(path)
    assert read_film(path, 1) == [0, 25]


def test_what_is_no_video_is_refused_with_path_and_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text.mp4").write_text("this is no video\n" * 100)
    (tmp_path / "folder.mp4").mkdir()
    for name, reason in {
        "empty.mp4": "0 bytes",
        "text.mp4": "cannot be opened as a video",
        "folder.mp4": "cannot be opened as a video",
        "absent.mp4": "No such file",
    }.items():
        with pytest.raises(DataError, match=reason) as caught:
            index_video(tmp_path / name)
        assert name in str(caught.value)


def test_sound_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w", format="wav") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        sound.rate = 8000
        container.mux(stream.encode(sound))
    with pytest.raises(DataError, match="no video stream"):
        index_video(path)


def read_or_refuse(path: Path, read_film: Callable[..., list[int]], fps: float, **options: int) -> list[int] | None:
    """Return the numbers, or None where there is an error with the path instead."""
    try:
        return read_film(path, fps)
    except DataError as error:
        if path.name not in str(error):
            raise
        return None


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_truncated_file_whose_index_is_lost(part: float, tmp_path: Path, write_film: Callable[..., Path]) -> None:
    path = write_film(tmp_path / "film.mp4", 200)
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    with pytest.raises(DataError, match=r"film\.mp4 cannot be opened as a video"):
        index_video(path)


@pytest.mark.parametrize("part", [0.8, 0.95])
def test_a_truncated_file_whose_index_comes_first(
    part: float, tmp_path: Path, write_film: Callable[..., Path], read_film: Callable[..., list[int]]
) -> None:
    """Only frames that are there count (that they are too few, the annotation tells), unless the last is half there."""
    path = write_film(tmp_path / "film.mp4", 200, container_options={"movflags": "+faststart"})
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    num_frames = len(index_video(path).stamps)
    assert 0 < num_frames < 200
    assert read_or_refuse(path, read_film, 5) in (None, list(range(0, num_frames, 5)))


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_stretch_never_shifts_what_follows(
    seed: int,
    tmp_path: Path,
    write_film: Callable[..., Path],
    read_film: Callable[..., list[int]],
    damage_stretch: Callable[..., None],
) -> None:
    """Either an error that says where, or the right pictures; never others in their place, never a hang."""
    path = write_film(tmp_path / "film.mp4", 200, container_options={"movflags": "+faststart"})
    damage_stretch(path, seed)
    assert read_or_refuse(path, read_film, 25) in (None, list(range(200)))


def test_the_message_for_damage_says_when(
    tmp_path: Path, write_film: Callable[..., Path], read_film: Callable[..., list[int]]
) -> None:
    path = write_film(tmp_path / "film.mp4", 200, container_options={"movflags": "+faststart"})
    content = bytearray(path.read_bytes())
    content[-len(content) // 4 :] = bytes(len(content) // 4 + 1)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"shown at \d\.\d\d s of 8\.00 s does not come out whole"):
        read_film(path, 25)


@pytest.mark.parametrize("fps", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_impossible_rates(fps: float, tmp_path: Path, write_film: Callable[..., Path]) -> None:
    index = index_video(write_film(tmp_path / "film.mp4", 5))
    with pytest.raises(DataError, match="fps is"):
        choose_frames(index, fps)


def test_a_single_frame(tmp_path: Path, write_film: Callable[..., Path], read_film: Callable[..., list[int]]) -> None:
    assert read_film(write_film(tmp_path / "film.mp4", 1), 1) == [0]
