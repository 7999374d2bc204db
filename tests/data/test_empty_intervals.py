"""Intervals of length zero, which public data sets have: a warning that counts them; negative ones are errors."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqckpt.data import Checkup, Labels, Video, examine, find_format, read_videos
from seqckpt.data.annotations import Row
from seqckpt.data.label_track import Interval, lay_out_intervals
from seqckpt.data.videos import IGNORE_INDEX
from seqckpt.errors import DataError

Writer = Callable[..., Path]
NAMES = ("cut", "mix", "serve")
LABELS = Labels(NAMES)

# Three seconds at 5 frames a second; the same labels, in each unit, with an empty interval in the middle of another, at
# the border of two, before all and at the end.
KINDS = {
    "start_seconds,end_seconds,phase": "0,0,mix\n0,1,cut\n0.5,0.5,serve\n1,1,serve\n1,3,mix\n3,3,cut\n",
    "start_ms,end_ms,phase": "0,0,mix\n0,1000,cut\n500,500,serve\n1000,1000,serve\n1000,3000,mix\n3000,3000,cut\n",
    "start_frame,end_frame,phase": "0,0,mix\n0,5,cut\n3,3,serve\n5,5,serve\n5,15,mix\n15,15,cut\n",
    "start_frame,last_frame,phase": "0,4,cut\n1,0,mix\n3,2,serve\n5,4,serve\n5,14,mix\n15,14,cut\n",
}


@pytest.fixture
def write_set(tmp_path: Path, write_film: Writer, write_text: Writer) -> Callable[[str], Path]:
    """A function that writes a data set of one video of three seconds, with this annotation."""

    def write(annotation: str) -> Path:
        write_film(tmp_path / "a.mp4", 15, 5)
        write_text(tmp_path / "videos.csv", "video,annotation\na.mp4,a.csv\n")
        write_text(tmp_path / "a.csv", annotation)
        return tmp_path

    return write


def read(root: Path, names: Sequence[str] = NAMES, format_name: str = "csv") -> Video:
    data_set = find_format(format_name).open(root, Labels(tuple(names)))
    (video,) = read_videos(data_set, data_set.video_ids[:1], fps=5.0, image_size=16, cache_dir=None, progress=False)
    return video


def check(root: Path, names: Sequence[str] = NAMES, format_name: str = "csv") -> Checkup:
    data_set = find_format(format_name).open(root, Labels(tuple(names)))
    return examine(data_set, {"all": data_set.video_ids[:1]}, names, fps=5.0, progress=False)


@pytest.mark.parametrize("header", KINDS)
def test_they_are_counted_and_change_no_label(
    header: str, write_set: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    root = write_set(f"{header}\n{KINDS[header]}")
    lines = "3, 4, 5, 7" if "last_frame" in header else "2, 4, 5, 7"
    with caplog.at_level(logging.WARNING):
        assert read(root).phases.tolist() == [0] * 5 + [1] * 10
    said = f"4 of 6 intervals in {root / 'a.csv'} end where they begin (lines {lines})"
    assert said in caplog.text
    checkup = check(root)
    assert [(found.severity, found.message) for found in checkup.findings if found.subject == "a"] == [
        ("warning", said)
    ]
    assert not checkup.has_errors
    assert checkup.table[1][checkup.table[0].index("rows")] == "6"


def test_many_are_not_all_listed(write_set: Callable[[str], Path]) -> None:
    root = write_set("start_seconds,end_seconds,phase\n0,3,cut\n" + "2,2,mix\n" * 7)
    assert any(
        "7 of 8 intervals" in f.message and "(lines 3, 4, 5, 6, 7, ...)" in f.message for f in check(root).findings
    )


def test_one_alone_is_singular(write_set: Callable[[str], Path]) -> None:
    root = write_set("start_seconds,end_seconds,phase\n0,3,cut\n2,2,mix\n")
    assert any(found.message.endswith("end where they begin (line 3)") for found in check(root).findings)


def test_a_file_of_nothing_else(write_set: Callable[[str], Path], caplog: pytest.LogCaptureFixture) -> None:
    """No label at all, in two videos: both are said, and nothing is divided by a length of zero."""
    root = write_set("start_seconds,end_seconds,phase\n1,1,cut\n")
    (root / "b.mp4").write_bytes((root / "a.mp4").read_bytes())
    (root / "videos.csv").write_text("video,annotation\na.mp4,a.csv\nb.mp4,a.csv\n")
    assert read(root).phases.tolist() == [IGNORE_INDEX] * 15
    assert "1 of 1 intervals" in caplog.text
    data_set = find_format("csv").open(root, LABELS)
    checkup = examine(data_set, {"all": ["a", "b"]}, NAMES, fps=5.0, progress=False)
    assert [row[checkup.table[0].index("first label")] for row in checkup.table[1:]] == ["(none)", "(none)"]
    assert sum("1 of 1 intervals" in found.message for found in checkup.findings) == 2


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (
            "start_seconds,end_seconds,phase\n0,1,cut\n1.5,1.25,mix\n",
            r"a\.csv:3: the interval is from 1\.5 to 1\.25; exp",
        ),
        ("start_ms,end_ms,phase\n0,1000,cut\n1000,999,mix\n", r"a\.csv:3: the interval is from 1000 to 999"),
        ("start_frame,end_frame,phase\n0,5,cut\n1000001,1000000,mix\n", r"a\.csv:3: .* from 1000001 to 1000000"),
        ("start_frame,last_frame,phase\n0,5,cut\n9,7,mix\n", r"a\.csv:3: the interval is from frame 9 to frame 7; exp"),
        ("start_seconds,end_seconds,phase\n0,3,cut\n1,1,bake\n", r"a\.csv:3: unknown phase 'bake'"),
    ],
)
def test_negative_ones_and_unknown_labels_are_errors(
    annotation: str, message: str, write_set: Callable[[str], Path]
) -> None:
    root = write_set(annotation)
    with pytest.raises(DataError, match=message):
        read(root)
    assert any(found.severity == "error" and re.search(message, found.message) for found in check(root).findings)


def test_a_phase_that_begins_where_the_video_ends(
    tmp_path: Path, write_film: Writer, write_text: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    names = find_format("cataract101").names_in(tmp_path)
    write_film(tmp_path / "videos" / "case_7.mp4", 15, 5)
    write_text(tmp_path / "videos.csv", "VideoID;Frames;FPS\n7;15;5\n")
    write_text(tmp_path / "annotations.csv", "VideoID;FrameNo;Phase\n7;0;1\n7;8;2\n7;15;3\n")
    assert read(tmp_path, names, "cataract101").phases.tolist() == [0] * 8 + [1] * 7
    assert re.search(r"1 of 3 intervals in .*annotations\.csv end where they begin \(line 4\)", caplog.text)
    assert any("(line 4)" in found.message for found in check(tmp_path, names, "cataract101").findings)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12))
def test_laid_out_as_if_they_were_not_there(pieces: list[tuple[int, int, int]]) -> None:
    labels = Labels(NAMES, priority=NAMES)
    intervals = [
        Interval(start, start + length, label, Row(Path("t"), line, ()))
        for line, (start, length, label) in enumerate(pieces, 2)
    ]
    filled = [interval for interval in intervals if interval.end > interval.start]
    track = lay_out_intervals(Path("t"), intervals, labels=labels, rate=1)
    without = lay_out_intervals(Path("t"), filled, labels=labels, rate=1)
    for values in ("starts", "ends", "values"):
        assert getattr(track, values).tolist() == getattr(without, values).tolist()
    assert track.empty_lines == tuple(line for line, (_, length, _) in enumerate(pieces, 2) if not length)
    assert track.num_rows == len(pieces)
