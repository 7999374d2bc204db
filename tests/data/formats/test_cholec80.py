"""The layout of Cholec80: labels belong to frames by number and time, and nothing is guessed."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from seqckpt.data import DataSet, FrameSource, Labels, Video, find_format, read_videos
from seqckpt.data.formats.cholec80 import PHASES, TOOLS
from seqckpt.errors import DataError

SetMaker = Callable[..., Path]


@pytest.fixture
def make_set(tmp_path: Path, write_film: Callable[..., Path]) -> SetMaker:
    """A function that writes one video with annotations and returns the root: phase of frame k is k // 10 % 7."""

    def make(
        video_id: str = "video01",
        num_frames: int = 100,
        num_rows: int | None = None,
        *,
        phases: list[int] | None = None,
        tool_rows: int | None = None,
        tool_step: int = 25,
        tools: bool = True,
        **film: Any,
    ) -> Path:
        root = tmp_path / "set"
        write_film(root / "videos" / f"{video_id}.mp4", num_frames, **film)
        num_rows = num_frames if num_rows is None else num_rows
        labels = phases or [frame // 10 % 7 for frame in range(num_rows)]
        text = "".join(f"{frame}\t{PHASES[label]}\n" for frame, label in enumerate(labels))
        (root / "phase_annotations").mkdir(exist_ok=True)
        (root / "phase_annotations" / f"{video_id}-phase.txt").write_text(f"Frame\tPhase\n{text}")
        if tools:
            tool_rows = -(-num_rows // tool_step) if tool_rows is None else tool_rows
            (root / "tool_annotations").mkdir(exist_ok=True)
            lines = [
                f"{row * tool_step}" + "".join(f"\t{int(k == row % 7)}" for k in range(7)) for row in range(tool_rows)
            ]
            text = "\n".join(["\t".join(["Frame", *TOOLS]), *lines]) + "\n"
            (root / "tool_annotations" / f"{video_id}-tool.txt").write_text(text)
        return root

    return make


def open_set(root: Path, names: Sequence[str] = PHASES, **options: Any) -> DataSet:
    return find_format("cholec80").open(root, Labels(tuple(names)), **options)


def read_some(root: Path, video_ids: Sequence[str], *, names: Sequence[str] = PHASES, **options: Any) -> list[Video]:
    options = {"fps": 1.0, "image_size": 16, "cache_dir": root / "frame_cache", "progress": False, **options}
    return read_videos(open_set(root, names), video_ids, **options)


def read_one(root: Path, video_id: str = "video01", **options: Any) -> Video:
    (video,) = read_some(root, [video_id], **options)
    return video


def test_labels_at_25_fps_frames_at_1(make_set: SetMaker) -> None:
    """A change at frame 50: the first four rows would all say A."""
    video = read_one(make_set(phases=[0] * 50 + [1] * 50))
    assert video.phases.tolist() == [0, 0, 1, 1]
    assert video.tools is not None
    assert video.tools.tolist() == torch.eye(7, dtype=torch.int64)[:4].tolist()
    assert video.seconds.tolist() == [0, 1, 2, 3]
    assert (video.video_id, video.path.name, len(video)) == ("video01", "video01.mp4", 4)
    assert (video.phases.dtype, video.tools.dtype) == (torch.int64, torch.int64)


@pytest.mark.parametrize("rate", [25, 30, Fraction(30000, 1001), Fraction(5)])
@pytest.mark.parametrize("fps", [1.0, 2.0, 4.0])
def test_every_label_is_that_of_its_picture(
    rate: Fraction | int, fps: float, make_set: SetMaker, read_number: Callable[..., int]
) -> None:
    video = read_one(make_set(rate=rate, tool_step=5), fps=fps)
    numbers = [read_number(picture.numpy()) for picture in video.frames[:]]
    assert numbers == [int(n / fps * rate + Fraction(1, 1000)) for n in range(len(video))]
    assert video.phases.tolist() == [number // 10 % 7 for number in numbers]
    assert video.tools is not None
    assert video.tools.argmax(1).tolist() == [number // 5 % 7 for number in numbers]


@pytest.mark.parametrize(
    "options", [{"g": "1"}, {"g": "250", "bf": "3"}, {"x264-params": "open-gop=1:keyint=12:bframes=3"}, {"bf": "0"}]
)
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_groups_of_pictures_do_not_matter(
    options: dict[str, str],
    suffix: str,
    make_set: SetMaker,
    write_film: Callable[..., Path],
    read_number: Callable[..., int],
) -> None:
    root = make_set(num_frames=150, rate=30, options=options)
    if suffix == "mkv":  # milliseconds, so that stamps are rounded
        (root / "videos" / "video01.mp4").unlink()
        write_film(root / "videos" / "video01.mkv", 150, 30, options=options)
    video = read_one(root, fps=3.0)
    numbers = [read_number(picture.numpy()) for picture in video.frames[:]]
    assert numbers == list(range(0, 150, 10))
    assert video.phases.tolist() == [number // 10 % 7 for number in numbers]


def test_an_avi_file_with_b_frames_says_what_it_lacks(make_set: SetMaker, write_film: Callable[..., Path]) -> None:
    """Its packets are counted, not stamped: by these counts, pictures would come in a wrong order, or not at all."""
    root = make_set(num_frames=60)
    (root / "videos" / "video01.mp4").unlink()
    write_film(root / "videos" / "video01.avi", 60, options={"bf": "0"})
    assert len(read_one(root)) == 3
    write_film(root / "videos" / "video01.avi", 60, options={"bf": "3"})
    with pytest.raises(DataError, match=r"is an AVI file with B-frames and has no time stamps, .* write it anew"):
        read_one(root)


def test_a_variable_rate_is_aligned_by_time(make_set: SetMaker, read_number: Callable[..., int]) -> None:
    """50 frames of 20 ms, then 50 of 100 ms: rows are counted by frame, seconds are not."""
    stamps = [*range(50), *range(50, 300, 5)]
    video = read_one(make_set(stamps=stamps, rate=50, time_base=Fraction(1, 50)))
    assert [read_number(picture.numpy()) for picture in video.frames[:]] == [0, 50, 60, 70, 80, 90]
    assert video.phases.tolist() == [0, 5, 6, 0, 1, 2]


def test_a_late_start_shifts_no_label(make_set: SetMaker) -> None:
    root = make_set(stamps=range(1, 101), time_base=Fraction(1, 25), phases=[0] * 25 + [1] * 25 + [2] * 50)
    assert read_one(root).phases.tolist() == [0, 1, 2, 2]


def test_frames_are_a_lazy_source(make_set: SetMaker) -> None:
    video = read_one(make_set(), image_size=(16, 32))
    assert isinstance(video.frames, FrameSource)
    assert not isinstance(video.frames, torch.Tensor)
    assert (video.frames[1:3].shape, video.frames[1:3].dtype) == ((2, 3, 16, 32), torch.uint8)


def test_the_cache_lies_beside_the_data_or_where_it_is_told(make_set: SetMaker, tmp_path: Path) -> None:
    root = make_set()
    read_one(root)
    assert len(list((root / "frame_cache").iterdir())) == 1
    read_one(root, cache_dir=tmp_path / "other", image_size=24)
    assert len(list((tmp_path / "other").iterdir())) == 1
    assert len(list((root / "frame_cache").iterdir())) == 1


@pytest.mark.parametrize(("num_frames", "num_rows"), [(101, 100), (100, 101), (255, 250), (250, 255)])
def test_a_short_tail_is_trimmed_and_said(
    num_frames: int, num_rows: int, make_set: SetMaker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="seqckpt"):
        video = read_one(make_set(num_frames=num_frames, num_rows=num_rows, tools=False), fps=25.0)
    assert len(video) == min(num_frames, num_rows)
    assert video.phases.tolist() == [k // 10 % 7 for k in range(len(video))]
    (record,) = caplog.records
    assert record.levelno == logging.INFO  # less than a second
    assert f"has {num_frames} frames" in record.message
    assert f"is for {num_rows}" in record.message


def test_more_than_a_second_is_a_warning(make_set: SetMaker, caplog: pytest.LogCaptureFixture) -> None:
    read_one(make_set(num_frames=200, num_rows=197, rate=2, tools=False), fps=1.0)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "1.50 s" in caplog.text


@pytest.mark.parametrize(("num_frames", "num_rows"), [(101, 60), (60, 101), (100, 97)])
def test_a_long_tail_is_an_error(num_frames: int, num_rows: int, make_set: SetMaker) -> None:
    root = make_set(num_frames=num_frames, num_rows=num_rows, tools=False)
    with pytest.raises(
        DataError, match=rf"video01\.mp4 has {num_frames} frames, but .*-phase\.txt is for {num_rows}: .*2%"
    ):
        read_one(root)


def test_a_strict_tail_forgives_nothing(make_set: SetMaker) -> None:
    root = make_set(num_frames=101, num_rows=100)
    with pytest.raises(DataError, match=r"the annotation is 1 frame \(0\.04 s\) too short; expected equal lengths"):
        read_one(root, tail="strict")
    with pytest.raises(ValueError, match="tail is 'guess'"):
        read_one(root, tail="guess")
    assert len(read_one(make_set(), tail="strict")) == 4


def test_frames_after_the_last_tool_row_are_unlabelled(make_set: SetMaker) -> None:
    video = read_one(make_set(num_frames=260, tool_rows=51, tool_step=5), fps=5.0)  # rows end at frame 254 of 259
    assert video.tools is not None
    assert len(video) == 52
    assert video.tools[50].tolist() == [0, 1, 0, 0, 0, 0, 0]
    assert video.tools[51].tolist() == [-100] * 7
    assert (video.phases >= 0).all()


def test_tools_of_another_video_are_noticed(make_set: SetMaker) -> None:
    root = make_set(num_frames=250, tool_rows=5)
    with pytest.raises(DataError, match=r"video01-tool\.txt is for 125"):
        read_one(root)


def test_a_set_without_tools(make_set: SetMaker) -> None:
    assert read_one(make_set(tools=False)).tools is None


def test_missing_files_are_named_together(make_set: SetMaker) -> None:
    make_set("video01")
    make_set("video02")
    root = make_set("video03")
    (root / "phase_annotations" / "video02-phase.txt").unlink()
    (root / "tool_annotations" / "video03-tool.txt").unlink()
    with pytest.raises(DataError, match="3 file") as caught:
        read_some(root, ["video01", "video02", "video03", "video41"])
    for name in ("video02-phase.txt", "video03-tool.txt", "a video video41"):
        assert name in str(caught.value)


def test_annotations_are_checked_before_anything_is_decoded(make_set: SetMaker) -> None:
    make_set("video01")
    root = make_set("video02")
    path = root / "phase_annotations" / "video02-phase.txt"
    path.write_text(path.read_text().replace(PHASES[2], "Trocar", 1))
    with pytest.raises(DataError, match=r"video02-phase\.txt:22: unknown phase 'Trocar'"):
        read_some(root, ["video01", "video02"])
    assert not (root / "frame_cache").exists()


def test_phases_of_ones_own(make_set: SetMaker) -> None:
    """Ids come from the given list and nothing else."""
    names = list(reversed(PHASES))
    assert read_one(make_set(), names=names).phases.tolist() == [6, 4, 1, 6]
    with pytest.raises(DataError, match="unknown phase 'GallbladderRetraction'; expected one of Preparation, Calot"):
        read_one(make_set(), names=PHASES[:6])


def test_one_broken_video_is_named_and_the_others_stay(make_set: SetMaker) -> None:
    make_set("video01")
    root = make_set("video02")
    (root / "videos" / "video02.mp4").write_bytes(b"")
    with pytest.raises(DataError, match=r"video02\.mp4 is empty \(0 bytes\)"):
        read_some(root, ["video01", "video02"])
    assert not list((root / "frame_cache").glob(".*"))


def test_ids_in_natural_order_without_strangers(make_set: SetMaker) -> None:
    for video_id in ("video10", "video2", "video1"):
        root = make_set(video_id, num_frames=2)
    for name in (".DS_Store", "._video1.mp4", "Thumbs.db", "video3.txt"):
        (root / "videos" / name).write_bytes(b"x")
    assert open_set(root).video_ids == ["video1", "video2", "video10"]


def test_names_of_every_kind(make_set: SetMaker) -> None:
    accents = unicodedata.normalize("NFD", "vidéo été 01")  # as macOS writes names
    for video_id in ("胆嚢 01", "Операция 1", "case.v2.01", accents):
        root = make_set(video_id)
    for video_id in ("胆嚢 01", "Операция 1", "case.v2.01", unicodedata.normalize("NFC", accents)):
        assert video_id in open_set(root).video_ids
        assert len(read_one(root, video_id)) == 4


def test_a_suffix_in_capitals(make_set: SetMaker) -> None:
    root = make_set()
    (root / "videos" / "video01.mp4").rename(root / "videos" / "video01.MP4")
    (root / "phase_annotations" / "video01-phase.txt").rename(root / "phase_annotations" / "video01-phase.TXT")
    assert len(read_one(root)) == 4
    (root / "videos" / "video01.mp4").write_bytes(b"x")
    with pytest.raises(DataError, match="have one name"):
        open_set(root)


def test_a_root_that_is_no_data_set_shows_the_layout(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "bare").mkdir()
    (tmp_path / "half" / "videos").mkdir(parents=True)
    (tmp_path / "hollow" / "videos").mkdir(parents=True)
    (tmp_path / "hollow" / "phase_annotations").mkdir()
    for name, reason in {
        "absent": "does not exist",
        "file": "is not a folder",
        "bare": "has no folder phase_annotations",
        "half": "has no folder phase_annotations",
        "hollow": "there is no video file in",
    }.items():
        for call in (open_set, read_one):
            with pytest.raises(DataError, match=reason) as caught:
                call(tmp_path / name)
            assert "video01-phase.txt, video02-phase.txt, ..." in str(caught.value)
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("fps", [0.0, -1.0, float("nan")])
def test_impossible_rates_are_refused_first(fps: float, make_set: SetMaker) -> None:
    with pytest.raises(DataError, match="fps is"):
        read_one(make_set(), fps=fps)


def test_impossible_sizes_are_refused_first(make_set: SetMaker) -> None:
    with pytest.raises(ValueError, match="image_size is 0"):
        read_one(make_set(), image_size=0)
