"""The doctor: what it says of sound videos, and that each thing that can be wrong is found, with a hint."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from seqckpt.data import Checkup, Finding, Labels, examine, find_format, format_balance, read_videos
from seqckpt.data.checks import check_labels
from seqckpt.data.class_balance import check_balance
from seqckpt.data.formats.cholec80 import PHASES
from seqckpt.data.frame_cache import Stopped
from seqckpt.data.pictures import look_at_all, look_at_some
from seqckpt.data.recording import index_recording
from seqckpt.errors import DataError

Writer = Callable[..., Path]
SetMaker = Callable[..., Path]


@pytest.fixture
def add_video(tmp_path: Path, write_film: Writer, write_text: Writer) -> SetMaker:
    """A function that adds a video with annotations to a data set, and returns the set's root."""

    def add(video_id: str, num_frames: int = 50, phases: Sequence[int] | None = None, **film: Any) -> Path:
        write_film(tmp_path / "videos" / f"{video_id}.mp4", num_frames, **film)
        labels = [k * 7 // num_frames for k in range(num_frames)] if phases is None else phases
        rows = "".join(f"{k}\t{PHASES[label]}\n" for k, label in enumerate(labels))
        write_text(tmp_path / "phase_annotations" / f"{video_id}-phase.txt", f"Frame\tPhase\n{rows}")
        return tmp_path

    return add


def check(root: Path, parts: Mapping[str, Sequence[str]] | None = None, **options: Any) -> Checkup:
    data_set = find_format("cholec80").open(root, Labels(PHASES))
    parts = parts or {"train": data_set.video_ids}
    return examine(data_set, parts, PHASES, **{"fps": 25.0, "progress": False, **options})


def say(checkup: Checkup) -> list[tuple[str, str, str]]:
    return [(finding.severity, finding.subject, f"{finding.message}; {finding.hint}") for finding in checkup.findings]


@pytest.mark.parametrize("full", [False, True])
def test_sound_videos(full: bool, add_video: SetMaker) -> None:
    add_video("video01", 50)
    root = add_video("video02", 60, rate=30)
    checkup = check(root, {"train": ["video01"], "test": ["video02"]}, full=full)
    assert checkup.findings == []
    assert not checkup.has_errors
    header, *rows = checkup.table
    columns = [dict(zip(header, row, strict=True)) for row in rows]
    first = {"video": "video01", "part": "train", "frames": "50", "rows": "50", "seconds": "2.00", "fps": "25"}
    labels = {"labelled": "100%", "first label": "Preparation", "last label": "GallbladderRetraction", "missing": "-"}
    decodable = {"decodable": "50"} if full else {}
    assert columns[0] == {**first, **decodable, **labels}
    assert (columns[1]["part"], columns[1]["frames"], columns[1]["fps"]) == ("test", "60", "30")
    assert checkup.counts["train"].tolist() == [8, 7, 7, 7, 7, 7, 7]


def test_missing_classes_are_reported_per_video_and_part(add_video: SetMaker) -> None:
    root = add_video("video01", phases=[0] * 25 + [3] * 25)
    checkup = check(root)
    header, row = checkup.table
    assert row[header.index("missing")].split(", ") == [PHASES[k] for k in (1, 2, 4, 5, 6)]
    ((severity, subject, text),) = say(checkup)
    assert (severity, subject) == ("warning", "train")
    assert text.startswith("no frame of CalotTriangleDissection, ClippingCutting, GallbladderPackaging")


def test_crosswise_annotations_are_found(add_video: SetMaker) -> None:
    """Case 97: two annotations swapped, with lengths that fit only crosswise; the others stay quiet."""
    add_video("video01", 300, phases=[0] * 250 + [1] * 51)
    add_video("video02", 180, phases=[0] * 240)
    root = add_video("video03", 240, phases=[0] * 180)
    errors = [(subject, text) for severity, subject, text in say(check(root)) if severity == "error"]
    assert [subject for subject, _ in errors] == ["video02", "video03", "video02"]
    assert re.search(r"video02\.mp4 has 180 frames, but .* is for 240.*It fits video03 .* better", errors[0][1])
    assert re.search(r"video03\.mp4 has 240 frames, but .* is for 180.*It fits video02 .* better", errors[1][1])
    assert re.search(r"its annotation .*video02-phase\.txt fits .*video03\.mp4 better, .* swapped\?", errors[2][1])


def test_crosswise_lengths_within_the_tail_stop_training(add_video: SetMaker, tmp_path: Path) -> None:
    """Their lengths differ by less than 2 %: only the comparison with each other tells."""
    add_video("video01", 120, phases=[0] * 122, rate=1)
    root = add_video("video02", 122, phases=[0] * 120, rate=1)
    data_set = find_format("cholec80").open(root, Labels(PHASES))
    with pytest.raises(DataError, match=r"video01: its annotation .* fits .*video02\.mp4 better"):
        read_videos(data_set, ["video01", "video02"], fps=1.0, image_size=16, cache_dir=tmp_path / "c", progress=False)
    assert not (tmp_path / "c").exists()  # before anything was decoded
    (video,) = read_videos(data_set, ["video01"], fps=1.0, image_size=16, cache_dir=None, progress=False)
    assert len(video) == 120


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("videos/video01.mp4", lambda content: b"", r"video01\.mp4 is empty \(0 bytes\)"),
        ("videos/video01.mp4", lambda content: b"no video at all", r"cannot be opened as a video: .*is it cut short\?"),
        (
            "phase_annotations/video01-phase.txt",
            lambda content: content.replace(b"ClippingCutting", b"Clipping", 1),
            r"video01-phase\.txt:17: unknown phase 'Clipping'",
        ),
        (
            "phase_annotations/video01-phase.txt",
            lambda content: content.replace(b"\n7\t", b"\n9\t"),
            r"video01-phase\.txt:9: frame 9 comes after frame 6",
        ),
        ("phase_annotations/video01-phase.txt", None, r"there is no .*video01-phase\.txt"),
    ],
)
def test_what_cannot_be_read_is_a_finding(
    name: str, change: Callable[[bytes], bytes] | None, message: str, add_video: SetMaker
) -> None:
    root = add_video("video01")
    add_video("video02")
    path = root / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    checkup = check(root)
    assert checkup.has_errors
    ((_, subject, text),) = [finding for finding in say(checkup) if finding[0] == "error"]
    assert subject == "video01"
    assert re.search(message, text)
    assert len(checkup.table) == 3
    assert "?" in checkup.table[1]
    assert "?" not in checkup.table[2]


def test_a_damaged_stretch_is_located_by_looking_at_all(add_video: SetMaker) -> None:
    root = add_video("video01", 200, options={"g": "25", "bf": "0"})
    assert check(root, full=True).findings == []
    path = root / "videos" / "video01.mp4"
    damage(path, first=100, last=110)
    checkup = check(root, full=True)
    header, row = checkup.table
    decodable = int(row[header.index("decodable")])
    assert 150 <= decodable < 200
    ((severity, subject, text),) = say(checkup)
    assert (severity, subject) == ("error", "video01")
    found = re.search(r"cannot be decoded from (\d+\.\d\d) s to (\d+\.\d\d) s \(frames (\d+) to (\d+)\)", text)
    assert found is not None
    assert 95 <= int(found[3]) <= 100
    assert 110 <= int(found[4]) <= 125
    assert float(found[1]) == int(found[3]) / 25
    assert [finding.severity for finding in check(root, full=True, corrupt="repeat").findings] == ["warning"]


def damage(path: Path, *, first: int, last: int) -> None:
    """Overwrite the content of some packets in a file."""
    with av.open(str(path)) as container:
        places = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    for position, size in places[first : last + 1]:
        content[position + 4 : position + size] = b"\xff" * (size - 4)
    path.write_bytes(content)


def test_a_truncated_file(add_video: SetMaker) -> None:
    root = add_video("video01", 100, container_options={"movflags": "faststart"})
    path = root / "videos" / "video01.mp4"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 7 // 10])
    found = say(check(root, full=True))
    assert {(severity, subject) for severity, subject, _ in found} == {("error", "video01")}
    assert any("too long" in text for *_, text in found)
    assert not any("data.corrupt=repeat" in text for *_, text in found)  # it would not help


@pytest.mark.parametrize("is_variable", [False, True])
def test_a_hole_by_damage_is_no_variable_rate(is_variable: bool, add_video: SetMaker) -> None:
    stamps = [*range(50), *(range(50, 200, 3) if is_variable else range(80, 130))]
    options = {"g": "1", "bf": "0"}
    root = add_video("video01", 100, stamps=stamps, time_base=Fraction(1, 25), options=options)
    assert "variable" in str(say(check(root, full=True)))
    damage(root / "videos" / "video01.mp4", first=49, last=49)
    found = say(check(root, full=True))
    assert "in frame 49, at 1.96 s; repair the file, or leave the video out, or set data.corrupt=repeat" in str(found)
    assert ("variable" in str(found)) == is_variable


def test_a_variable_rate_is_said_in_training_too(add_video: SetMaker, caplog: pytest.LogCaptureFixture) -> None:
    stamps = [*range(25), *range(25, 100, 3)]
    root = add_video("video01", 50, stamps=stamps, time_base=Fraction(1, 25))
    ((severity, subject, text),) = say(check(root))
    assert (severity, subject) == ("warning", "video01")
    assert "has a variable frame rate (12.5 a second on average, up to 12 frames off)" in text
    data_set = find_format("cholec80").open(root, Labels(PHASES))
    read_videos(data_set, ["video01"], fps=5.0, image_size=16, cache_dir=None, progress=False)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "has a variable frame rate" in caplog.text


@pytest.mark.parametrize("rate", [Fraction(30000, 1001), 24, 30, Fraction(25, 3)])
@pytest.mark.parametrize("fps", [0.7, 1.0, 12.0])
def test_no_constant_rate_is_called_variable(
    rate: Fraction | int, fps: float, add_video: SetMaker, caplog: pytest.LogCaptureFixture
) -> None:
    root = add_video("video01", 150, rate=rate)
    assert check(root).findings == []
    data_set = find_format("cholec80").open(root, Labels(PHASES))
    read_videos(data_set, ["video01"], fps=fps, image_size=16, cache_dir=None, progress=False)
    assert not caplog.records


@pytest.mark.parametrize("full", [False, True])
def test_black_borders_get_a_crop(full: bool, tmp_path: Path, add_video: SetMaker) -> None:
    root = add_video("video01", 50)
    with av.open(str(root / "videos" / "video01.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"threads": "1"})
        stream.width, stream.height, stream.pix_fmt = 128, 64, "yuv420p"
        for number in range(50):
            picture = np.zeros((64, 128, 3), np.uint8)
            picture[:, 32:112] = 60 + number
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    ((severity, subject, text),) = say(check(root, full=full))
    assert (severity, subject) == ("note", "video01")
    assert "has black borders (top 0%, bottom 0%, left 25%, right 12%)" in text
    assert "ffmpeg -vf crop=iw*0.625:ih*1:iw*0.25:ih*0 cuts them off" in text


def test_a_video_in_two_parts_is_examined_once(add_video: SetMaker) -> None:
    root = add_video("video01")
    checkup = check(root, {"train": ["video01"], "val": ["video01"]})
    assert [row[1] for row in checkup.table] == ["part", "train and val"]


def test_a_finding_in_words() -> None:
    assert str(Finding("note", "video01", "is short", "look at it")) == "video01: is short; look at it"
    assert str(Finding("note", "video01", "is short")) == "video01: is short"


def test_the_balance_of_classes() -> None:
    counts = {"train": torch.tensor([3, 0, 1]), "test": torch.tensor([0, 0, 0])}
    names = ["a", "b", "c"]
    assert format_balance(counts, names, weights=torch.tensor([0.5, 0.0, 1.25])) == [
        ["phase", "train frames", "test frames", "weight"],
        ["a", "3 (75.0%)", "0 (0.0%)", "0.5"],
        ["b", "0 (0.0%)", "0 (0.0%)", "0"],
        ["c", "1 (25.0%)", "0 (0.0%)", "1.25"],
    ]
    assert [len(row) for row in format_balance(counts, names)] == [3] * 4
    assert [(finding.subject, finding.message) for finding in check_balance(counts, names)] == [
        ("train", "no frame of b"),
        ("test", "no frame of a, b, c"),
    ]
    assert [finding.severity for finding in check_balance(counts, names)] == ["warning", "warning"]
    (nothing,) = check_balance({"val": torch.tensor([0, 0, 0])}, names)
    assert nothing.severity == "error"  # nothing to choose an epoch by


def test_frames_without_a_label_are_counted_as_training_does(
    tmp_path: Path, write_text: Writer, write_images: Writer
) -> None:
    write_images(tmp_path / "frames" / "x", {f"{k}.png": 0xFFFF for k in range(10)})
    write_text(tmp_path / "annotations" / "x.csv", "start_seconds,end_seconds,phase\n2,5,a\n5,7,b\n")
    data_set = find_format("frames").open(tmp_path, Labels(("a", "b")))
    for unlabelled, expected in {
        "ignore": [("warning", "x", "50% of its frames (0.0 s to 2.0 s and 7.0 s to 10.0 s) have no label")],
        "error": [("error", "x", "5 of 10 sampled frames have no label, the first at 0.00 s")],
    }.items():
        checkup = examine(
            data_set, {"all": ["x"]}, ["a", "b"], fps=1.0, frame_rate=1.0, unlabelled=unlabelled, progress=False
        )
        assert [(each.severity, each.subject, each.message) for each in checkup.findings] == expected
        assert checkup.counts["all"].tolist() == [3, 2]
        assert checkup.table[1][2:] == ["10", "2", "10.00", "1", "50%", "a", "b", "-"]


def test_a_missing_end_is_said_and_gaps_between_are_not() -> None:
    """Where the annotation may have gaps. Where it promises a label for each frame, every gap counts."""
    labels = np.zeros(100, np.int64)
    labels[20:40] = labels[92:] = -100
    options: dict[str, Any] = {"fps": Fraction(2), "unlabelled": "ignore"}
    assert check_labels("x", labels, is_complete=False, **options) is None
    complete = check_labels("x", labels, is_complete=True, **options)
    assert complete is not None
    assert complete.message == "28% of its frames (10.0 s to 20.0 s and 46.0 s to 50.0 s) have no label"
    labels[51:] = -100
    cut = check_labels("x", labels, is_complete=False, **options)
    assert cut is not None
    assert (cut.severity, cut.message) == ("warning", "49% of its frames (25.5 s to 50.0 s) have no label")


def test_one_wrong_rate_for_all_is_said_once(tmp_path: Path, write_text: Writer, write_images: Writer) -> None:
    for name, length in {"a": 10, "b": 12}.items():
        write_images(tmp_path / "frames" / name, {f"{k}.png": 0xFFFF for k in range(length)})
        write_text(
            tmp_path / "annotations" / f"{name}.csv", "second,phase\n" + "".join(f"{k},x\n" for k in range(length))
        )
    data_set = find_format("frames").open(tmp_path, Labels(("x",)))
    options: dict[str, Any] = {"fps": 1.0, "progress": False}
    parts = {"train": ["a", "b"]}
    assert examine(data_set, parts, ["x"], frame_rate=1.0, **options).findings == []
    ((severity, subject, text),) = say(examine(data_set, parts, ["x"], frame_rate=5.0, **options))
    assert (severity, subject) == ("error", "all videos")
    assert text.startswith("all 2 annotations are 5 times as long as their videos (")
    assert "is data.frame_rate=1 meant" in text
    errors = say(examine(data_set, {"train": ["a"]}, ["x"], frame_rate=5.0, **options))
    assert re.search(r"the annotation is 8\.00 s too long \(80\.0%\).*or is data\.frame_rate=1 meant", errors[0][2])
    for finding in say(examine(data_set, parts, ["x"], **options)):
        assert re.search("give data.frame_rate .*25 where .* 1 where", finding[2])


def test_crosswise_intervals_are_found(add_video: SetMaker, write_text: Writer) -> None:
    """The shorter video's annotation is too long; the longer one's could be one with an unlabelled end."""
    root = add_video("a", 60, rate=5)
    add_video("b", 100, rate=5)
    for name, end in {"a": 19.8, "b": 11.9}.items():
        write_text(root / f"{name}.csv", f"start_seconds,end_seconds,phase\n0,{end},{PHASES[0]}\n")
    write_text(root / "videos.csv", "video,annotation\nvideos/a.mp4,a.csv\nvideos/b.mp4,b.csv\n")
    data_set = find_format("csv").open(root, Labels(PHASES))
    checkup = examine(data_set, {"all": ["a", "b"]}, PHASES, fps=1.0, progress=False)
    errors = [(subject, text) for severity, subject, text in say(checkup) if severity == "error"]
    assert [subject for subject, _ in errors] == ["a", "a"]
    assert "It fits b " in errors[0][1]
    assert re.search(r"a\.csv fits .*b\.mp4 better, and .*b\.csv fits .*a\.mp4; .* swapped\?", errors[1][1])


def test_another_video_that_fits_better_is_named_within_the_tail_too(add_video: SetMaker) -> None:
    add_video("video01", 120, phases=[0] * 122, rate=1)
    root = add_video("video02", 122, phases=[0] * 122, rate=1)
    found = [(severity, subject, text) for severity, subject, text in say(check(root, fps=1.0)) if subject != "train"]
    ((severity, subject, text),) = found
    assert (severity, subject) == ("warning", "video01")
    assert re.search(r"only what both have is used; is it another video's\? It fits video02 .* better", text)


def test_looking_ends_soon_after_it_is_asked_to(add_video: SetMaker) -> None:
    timeline = index_recording(add_video("video01") / "videos" / "video01.mp4")
    stop = threading.Event()
    assert look_at_all(timeline, stop=stop).num_decoded == 50
    stop.set()
    for look in (look_at_all, look_at_some):
        with pytest.raises(Stopped):
            look(timeline, stop=stop)
