"""Sample n is the last frame that has begun at n / fps seconds: pictures and labels, at many rates, in many containers.

What is right is counted by fractions here, from the rate that a film was made with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqckpt.data import Labels, Video, find_format, frame_cache, read_videos
from seqckpt.data.frame_cache import SampledVideo, cache_video
from seqckpt.data.label_track import lay_out_rows
from seqckpt.data.timeline import Timeline, choose_frames, find_constant_rate
from seqckpt.data.video_facts import VideoFacts
from seqckpt.data.video_file import index_video

Writer = Callable[..., Path]
Reader = Callable[..., int]
NTSC = Fraction(30000, 1001)
RATES = (NTSC, Fraction(30), Fraction(25), Fraction(15))
SAMPLED = (1, 2, 7, Fraction(25, 2))  # frames a second, and the film's own rate
NUM_FRAMES = 120
NAMES = tuple("abcdefg")


def expect(rate: Fraction, fps: Fraction, num_frames: int = NUM_FRAMES) -> list[int]:
    """By hand: frame k begins at k / rate and the last one ends at num_frames / rate."""
    numbers, n = [], 0
    while Fraction(n) / fps < num_frames / rate:
        numbers.append(max(k for k in range(num_frames) if k / rate <= Fraction(n) / fps))
        n += 1
    return numbers


def spell(video: Video, read_number: Reader) -> list[int]:
    return [read_number(frame.numpy()) for frame in video.frames[0 : len(video)]]


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "avi", "ts"])
@pytest.mark.parametrize("rate", RATES, ids=str)
def test_pictures_and_labels(
    rate: Fraction, suffix: str, tmp_path: Path, write_film: Writer, write_text: Writer, read_number: Reader
) -> None:
    """Units of 1 / 30000 s, of a millisecond, of a frame, and of 1 / 90000 s.

    Labels count the film's own frames, frames at 30 a second, or seconds.
    """
    write_film(tmp_path / f"film.{suffix}", NUM_FRAMES, rate, options={"bf": "0"})
    rows = "".join(f"{NAMES[k % 7]}\n" for k in range(NUM_FRAMES))
    rows_at_30 = "".join(f"{NAMES[k % 7]}\n" for k in range(int(NUM_FRAMES / rate * 30)))
    ends = [*range(100, int(NUM_FRAMES / rate * 1000), 100), int(NUM_FRAMES / rate * 1000)]
    spans = "".join(f"{100 * k},{end},{NAMES[k % 7]}\n" for k, end in enumerate(ends))
    write_text(tmp_path / "own.csv", f"phase\n{rows}")
    write_text(tmp_path / "at_30.csv", f"phase\n{rows_at_30}")
    write_text(tmp_path / "spans.csv", f"start_ms,end_ms,phase\n{spans}")
    table = "".join(
        f"film.{suffix},{name}.csv,{fps},{name}\n" for name, fps in {"own": "", "at_30": 30, "spans": ""}.items()
    )
    write_text(tmp_path / "videos.csv", f"video,annotation,fps,id\n{table}")
    data_set = find_format("csv").open(tmp_path, Labels(NAMES))
    for fps in (*map(Fraction, SAMPLED), rate):
        own, at_30, spans_of = read_videos(
            data_set, ["own", "at_30", "spans"], fps=float(fps), image_size=64, cache_dir=None, progress=False
        )
        numbers = expect(rate, fps)
        assert spell(own, read_number) == numbers
        assert own.phases.tolist() == [k % 7 for k in numbers]
        moments = [Fraction(n) / fps for n in range(len(numbers))]
        assert at_30.phases.tolist() == [int(moment * 30) % 7 for moment in moments][: len(at_30)]
        assert len(numbers) - len(at_30) in (0, 1)  # the last frame at 30 a second ends a little before the film
        assert spans_of.phases.tolist() == [int(moment * 10) % 7 for moment in moments]


def test_breakfast(tmp_path: Path, write_film: Writer, write_text: Writer, read_number: Reader) -> None:
    """The example of data/README.md: 15 frames a second in an AVI, 7 sampled; sample 4 is for 0.571 s.

    Frame 8 is on the screen from 0.533 s on, frame 9 from 0.6 s; a moment in whole frames would be that of frame 9.
    """
    write_film(tmp_path / "P03.avi", 45, 15, options={"bf": "0"})
    write_text(tmp_path / "P03.csv", "phase\n" + "a\n" * 9 + "b\n" * 36)
    write_text(tmp_path / "videos.csv", "video,annotation\nP03.avi,P03.csv\n")
    data_set = find_format("csv").open(tmp_path, Labels(("a", "b")))
    (video,) = read_videos(data_set, ["P03"], fps=7.0, image_size=64, cache_dir=None, progress=False)
    assert spell(video, read_number)[:8] == [0, 2, 4, 6, 8, 10, 12, 15]
    assert video.phases.tolist()[:6] == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("suffix", ["mkv", "ts"])
@pytest.mark.parametrize("rate", [NTSC, Fraction(24), Fraction(24000, 1001), Fraction(60000, 1001)], ids=str)
def test_rounded_stamps_with_frames_missing(rate: Fraction, suffix: str, tmp_path: Path, write_film: Writer) -> None:
    """Every frame there is comes once at the film's own rate, and where one is missing, the one before it again."""
    places = [k for k in range(100) if k % 9 != 4 and k not in (50, 51)]
    path = write_film(
        tmp_path / f"film.{suffix}", len(places), rate, stamps=places, time_base=1 / rate, options={"bf": "0"}
    )
    index = index_video(path)
    shown = [max(place for place in range(len(places)) if places[place] <= k) for k in range(100)]
    assert choose_frames(index, float(rate)).tolist() == shown


@given(
    rate=st.sampled_from([*RATES, Fraction(24000, 1001), Fraction(10), Fraction(60000, 1001)]),
    unit=st.sampled_from([Fraction(1, 1000), Fraction(1, 90000), Fraction(1, 600), Fraction(1, 240)]),
    fps=st.sampled_from([Fraction(1), Fraction(7), Fraction(25, 2), Fraction(24), Fraction(2997, 100), NTSC]),
    places=st.lists(st.integers(0, 300), min_size=2, max_size=60, unique=True).map(sorted),
    start=st.integers(0, 1000),
    cut=st.booleans(),
)
def test_a_rate_whose_stamps_are_rounded(
    rate: Fraction, unit: Fraction, fps: Fraction, places: list[int], start: int, cut: bool
) -> None:
    """To the nearest unit, or down to one: the frames are those of the rate, not of the rounded stamps."""
    exact = [place / rate / unit for place in [*places, places[-1] + 1]]
    stamps = [start + (int(time) if cut else round(time)) for time in exact]
    timeline = Timeline(Path("film"), np.array(stamps[:-1]), stamps[-1], unit, rate=rate)
    assert find_constant_rate(timeline.stamps, unit, [None, rate]) == rate
    since = [(place - places[0]) / rate for place in places]
    expected: list[int] = []
    while (moment := Fraction(len(expected)) / fps) < (places[-1] + 1 - places[0]) / rate:
        expected.append(max(k for k, time in enumerate(since) if time <= moment))
    assert choose_frames(timeline, float(fps)).tolist() == expected


@pytest.mark.parametrize("rates", [[None], [Fraction(25)], [Fraction(0)], [Fraction(10**15 + 1, 10**14)]])
def test_stamps_of_no_constant_rate_are_taken_as_they_are(rates: Sequence[Fraction | None]) -> None:
    assert find_constant_rate(np.array([0, 33, 67, 100]), Fraction(1, 1000), rates) is None


def test_a_moment_before_a_row_stays_before_it() -> None:
    """1 - 10**-13 of a row, times a million: as floats the quotient rounds up to the next row's number."""
    rate, fps, n = Fraction(99_999, 100_000), Fraction(99_998, 99_999), 10**6
    place = n * (rate / fps)
    track = lay_out_rows(Path("t"), [0], rate=1)
    facts = VideoFacts("v", Path("v"), n, float(n), 0.0, track, annotation_fps=float(rate))
    last = float(facts.place_on(lay_out_rows(Path("t"), [0]), np.arange(n + 1), fps)[-1])
    assert int(last) == place.numerator // place.denominator


# --- caches of before ---


def write_as_before(
    film: Path, cache_dir: Path, fps: float, places: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> SampledVideo:
    """Write a cache whose header does not say how frames were chosen, of these places (None: those chosen now)."""
    pack = frame_cache._pack_header

    def leave_out(header: dict[str, object]) -> bytes:
        return pack({key: value for key, value in header.items() if key != "moments"})

    with monkeypatch.context() as patched:
        patched.setattr(frame_cache, "_pack_header", leave_out)
        patched.setattr(frame_cache, "_check_choice", lambda *arguments, **options: None)
        if places is not None:
            patched.setattr(frame_cache, "choose_frames", lambda timeline, fps: np.array(places))
        return cache_video(film, fps=fps, image_size=(64, 64), cache_dir=cache_dir)


def test_a_cache_of_rounded_moments_is_made_anew(
    tmp_path: Path,
    write_film: Writer,
    read_number: Reader,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    film = write_film(tmp_path / "film.avi", 45, 15, options={"bf": "0"})
    rounded = [int(Fraction(15 * n, 7) + Fraction(1, 2)) for n in range(21)]
    assert write_as_before(film, tmp_path / "cache", 7.0, rounded, monkeypatch).numbers.tolist() == rounded
    video = cache_video(film, fps=7.0, image_size=(64, 64), cache_dir=tmp_path / "cache")
    assert "chose frames that are not yet shown at their moments" in caplog.text
    assert [read_number(frame.numpy()) for frame in video.frames[:]] == expect(Fraction(15), Fraction(7), 45)
    assert video.numbers.tolist() == expect(Fraction(15), Fraction(7), 45)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "avi"])
@pytest.mark.parametrize("rate", RATES, ids=str)
def test_a_cache_of_before_that_is_right_is_kept(
    rate: Fraction,
    suffix: str,
    tmp_path: Path,
    write_film: Writer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    film = write_film(tmp_path / f"film.{suffix}", 60, rate, options={"bf": "0"})
    for fps in (1.0, 5.0, float(rate)):
        written = write_as_before(film, tmp_path / "cache", fps, None, monkeypatch)
        monkeypatch.setattr(frame_cache, "index_recording", pytest.fail)  # it is told by its header alone
        with caplog.at_level(logging.WARNING):
            kept = cache_video(film, fps=fps, image_size=(64, 64), cache_dir=tmp_path / "cache")
        monkeypatch.undo()
        assert kept.numbers.tolist() == written.numbers.tolist()
        assert not caplog.text


def test_a_cache_of_before_with_a_variable_rate_is_kept(
    tmp_path: Path, write_film: Writer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stamps = np.cumsum(np.random.default_rng(0).integers(1, 9, 60)).tolist()
    film = write_film(tmp_path / "film.mp4", 60, 50, stamps=stamps, time_base=Fraction(1, 50))
    written = write_as_before(film, tmp_path / "cache", 5.0, None, monkeypatch)
    kept = cache_video(film, fps=5.0, image_size=(64, 64), cache_dir=tmp_path / "cache")
    assert kept.numbers.tolist() == written.numbers.tolist()
    assert not caplog.text
    (place,) = (tmp_path / "cache").iterdir()
    assert b'"moments"' not in place.read_bytes()[:4096]
