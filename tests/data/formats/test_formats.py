"""Every format as it lies on disk, from video files and from folders of frames: the label of each picture."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqckpt.data import DataSet, Labels, Video, find_format, list_formats, read_videos
from seqckpt.data.formats.m2cai16 import PHASES as M2CAI16_PHASES
from seqckpt.data.videos import IGNORE_INDEX
from seqckpt.errors import DataError

Writer = Callable[..., Path]
Reader = Callable[..., int]
NONE = IGNORE_INDEX


def open_set(name: str, root: Path, names: Sequence[str] | None = None, **options: Any) -> DataSet:
    found = find_format(name)
    return found.open(root, Labels(tuple(names or found.names_in(root)), **options))


def read_one(name: str, root: Path, video_id: str, *, names: Sequence[str] | None = None, **options: Any) -> Video:
    options = {"fps": 1.0, "image_size": 16, "cache_dir": None, "progress": False, **options}
    labels = {key: options.pop(key) for key in ("ignored", "priority") if key in options}
    (video,) = read_videos(open_set(name, root, names, **labels), [video_id], **options)
    return video


def spell(video: Video, read_number: Reader) -> list[int]:
    return [read_number(picture.numpy()) for picture in video.frames[:]]


def rows(labels: Sequence[str], first: int = 0, separator: str = "\t") -> str:
    return "".join(f"{first + k}{separator}{label}\n" for k, label in enumerate(labels))


def test_the_formats_that_there_are() -> None:
    names = {"cholec80", "m2cai16", "autolaparo", "heichole", "cataract101", "mstcn", "frames", "csv"}
    assert names <= set(list_formats())
    with pytest.raises(DataError, match=r"no format 'cholec': expected one of autolaparo, .*; did you mean cholec80\?"):
        find_format("cholec")


@pytest.mark.parametrize(
    ("name", "num_phases", "first"),
    [
        ("cholec80", 7, "Preparation"),
        ("m2cai16", 8, "TrocarPlacement"),
        ("autolaparo", 7, "Preparation"),
        ("heichole", 7, "Preparation"),
        ("cataract101", 10, "Incision"),
    ],
)
def test_phases_of_a_format(name: str, num_phases: int, first: str, tmp_path: Path) -> None:
    names = find_format(name).names_in(tmp_path)
    assert (len(names), len(set(names)), names[0]) == (num_phases, num_phases, first)


@pytest.mark.parametrize("name", ["cholec80", "m2cai16", "autolaparo", "heichole", "cataract101", "mstcn", "frames"])
def test_an_empty_folder_shows_the_layout(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Expected in "):
        open_set(name, tmp_path, ["a", "b"])
    with pytest.raises(DataError, match="does not exist"):
        open_set(name, tmp_path / "absent", ["a", "b"])


# --- M2CAI16 ---


def test_m2cai16(tmp_path: Path, write_film: Writer, write_text: Writer) -> None:
    for folder, video_id in (("", "workflow_video_01"), ("test_dataset", "test_workflow_video_01")):
        write_film(tmp_path / folder / f"{video_id}.mp4", 75)
        labels = ["TrocarPlacement"] * 25 + ["Preparation"] * 50
        write_text(tmp_path / folder / f"{video_id}.txt", "Frame\tPhase\n" + rows(labels))
    data_set = open_set("m2cai16", tmp_path)
    assert data_set.lists == {"train": ["workflow_video_01"], "test": ["test_workflow_video_01"]}
    for video_id in data_set.video_ids:
        assert read_one("m2cai16", tmp_path, video_id).phases.tolist() == [0, 1, 1]
    names = M2CAI16_PHASES[1:]
    with pytest.raises(DataError, match=r"workflow_video_01\.txt:2: unknown phase 'TrocarPlacement'"):
        read_one("m2cai16", tmp_path, "workflow_video_01", names=names)


# --- AutoLaparo ---


def test_autolaparo_has_a_row_per_second_from_1(tmp_path: Path, write_film: Writer, write_text: Writer) -> None:
    """30 fps video, 1 fps labels: row k is for the second before k."""
    write_film(tmp_path / "videos" / "03.mp4", 135, 30)  # 4.5 s
    write_text(tmp_path / "labels" / "label_03.txt", "Frame\tPhase\n" + rows(["1", "1", "7", "2", "2"], first=1))
    assert read_one("autolaparo", tmp_path, "03").phases.tolist() == [0, 0, 6, 1, 1]
    at_2 = read_one("autolaparo", tmp_path, "03", fps=2.0)
    assert at_2.phases.tolist() == [0, 0, 0, 0, 6, 6, 1, 1, 1]
    for number in (4, 11, 15):
        write_film(tmp_path / "videos" / f"{number:02d}.mp4", 2)
    assert open_set("autolaparo", tmp_path).lists == {"train": ["03", "04"], "val": ["11"], "test": ["15"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Frame\tPhase\n0\t1\n", r"label_01\.txt:2: the first row is for frame 0; expected frame 1"),
        ("Frame\tPhase\n1\t0\n", r"label_01\.txt:2: the phase is '0'; expected a whole number from 1 to 7"),
        ("Frame\tPhase\n1\t8\n", r"the phase is '8'; expected a whole number from 1 to 7"),
        ("Frame\tPhase\n1\t1\n3\t1\n", r"label_01\.txt:3: frame 3 comes after frame 1 \(a gap\)"),
        ("Frame\tPhase\n", "a header and no rows"),
    ],
)
def test_bad_autolaparo(text: str, message: str, tmp_path: Path, write_film: Writer, write_text: Writer) -> None:
    write_film(tmp_path / "videos" / "01.mp4", 25)
    write_text(tmp_path / "labels" / "label_01.txt", text)
    with pytest.raises(DataError, match=message):
        read_one("autolaparo", tmp_path, "01")


# --- HeiChole ---


@pytest.mark.parametrize(
    ("video", "table"),
    [
        ("Videos/Hei-Chole7.mp4", "Annotations/Phase/Hei-Chole7_Annotation_Phase.csv"),
        ("videos/Hei-Chole7.mp4", "annotations/hei-chole7_annotation_phase.csv"),
        ("Hei-Chole7.mp4", "Hei-Chole7_Annotation_Phase.csv"),
    ],
)
def test_heichole(video: str, table: str, tmp_path: Path, write_film: Writer, write_text: Writer) -> None:
    """50 fps, a row per frame: the rate is the video's own."""
    write_film(tmp_path / video, 150, 50)
    write_text(tmp_path / table, rows(["0"] * 50 + ["3"] * 50 + ["6"] * 50, separator=","))
    assert read_one("heichole", tmp_path, "Hei-Chole7").phases.tolist() == [0, 3, 6]
    write_text(tmp_path / table, rows(["7"], separator=","))
    with pytest.raises(DataError, match=r"(?i)phase\.csv:1: the phase is '7'; expected a whole number from 0 to 6"):
        read_one("heichole", tmp_path, "Hei-Chole7")


# --- Cataract-101 ---


@pytest.fixture
def cataract_set(tmp_path: Path, write_film: Writer, write_text: Writer) -> Path:
    for number in (269, 1000):
        write_film(tmp_path / "videos" / f"case_{number}.mp4", 125)
    write_text(tmp_path / "videos.csv", "VideoID;Frames;FPS;Surgeon;Experience\n269;125;25;1;2\n1000;125;25;2;1\n")
    write_text(
        tmp_path / "annotations.csv", "VideoID;FrameNo;Phase\n269;75;10\n269;26;1\n1000;0;3\n1000;50;2\n1000;100;3\n"
    )
    return tmp_path


def test_cataract101_rows_are_starts(cataract_set: Path) -> None:
    """Unsorted, with a lead that nobody has annotated; phases are counted from 1."""
    assert open_set("cataract101", cataract_set).video_ids == ["case_269", "case_1000"]
    assert read_one("cataract101", cataract_set, "case_269").phases.tolist() == [NONE, NONE, 0, 9, 9]
    assert read_one("cataract101", cataract_set, "case_1000").phases.tolist() == [2, 2, 1, 1, 2]


def test_cataract101_from_frames(
    cataract_set: Path, tmp_path: Path, write_images: Writer, write_text: Writer, read_number: Reader
) -> None:
    """Frames taken twice a second and numbered 1, 2, 3, ...: the table counts 25 a second."""
    root = tmp_path / "frames_only"
    for name in ("videos.csv", "annotations.csv"):
        write_text(root / name, (cataract_set / name).read_text())
    write_images(root / "frames" / "case_269", {f"{k}.jpg": k for k in range(1, 11)})
    video = read_one("cataract101", root, "case_269", frame_rate=2.0)
    assert spell(video, read_number) == [1, 3, 5, 7, 9]
    assert video.phases.tolist() == [NONE, NONE, 0, 9, 9]


@pytest.mark.parametrize(
    ("table", "old", "new", "message"),
    [
        ("annotations.csv", "269;26;1", "269;75;1", r"annotations\.csv:[23]: two phases begin at frame 75"),
        ("annotations.csv", "269;26;1", "269;26;11", r"annotations\.csv:3: the phase is '11'; expected .* 1 to 10"),
        (
            "annotations.csv",
            "269;75;10",
            "269;126;10",
            r"annotations\.csv:2: a phase begins at frame 126; the",
        ),
        ("annotations.csv", "269;75;10", "269;x;10", r"annotations\.csv:2: the frame number is 'x'"),
        ("annotations.csv", "269;75;10", "269;75", r"annotations\.csv:2: read 2 columns; expected 3"),
        ("annotations.csv", "FrameNo", "Frame", r"annotations\.csv:1: read the columns videoid, frame, phase"),
        ("annotations.csv", "269;", "268;", r"annotations\.csv has no row for case_269"),
        ("videos.csv", "\n269;", "\n268;", r"videos\.csv has no row for case_269"),
        ("videos.csv", "\n1000;", "\n269;", r"videos\.csv:3: the video 269 stands in line 2 already"),
        ("videos.csv", "269;125", "269;110", r"has 125 frames, but .*annotations\.csv is for 110"),
        ("videos.csv", "269;125", "269;many", r"videos\.csv:2: the number of frames is 'many'"),
    ],
)
def test_bad_cataract101(table: str, old: str, new: str, message: str, cataract_set: Path) -> None:
    path = cataract_set / table
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=message):
        read_one("cataract101", cataract_set, "case_269")


# --- MS-TCN ---


@pytest.fixture
def mstcn_set(tmp_path: Path, write_film: Writer, write_text: Writer) -> Path:
    for video_id in ("rgb-01-1", "rgb-02-1", "rgb-03-1"):
        write_film(tmp_path / "videos" / f"{video_id}.mkv", 90, 30)
        write_text(
            tmp_path / "groundTruth" / f"{video_id}.txt",
            "\n".join(["SIL"] * 29 + ["cut tomato"] * 31 + ["add_oil"] * 30),
        )
    write_text(tmp_path / "mapping.txt", "0 cut tomato\n1 add_oil\n2 SIL\n")
    write_text(tmp_path / "splits" / "train.split1.bundle", "#bundle\n./data/groundTruth/rgb-01-1.txt\nrgb-03-1.txt\n")
    write_text(tmp_path / "splits" / "test.split1.bundle", "rgb-02-1.txt")
    return tmp_path


def test_mstcn(mstcn_set: Path) -> None:
    """The last line has no newline, and is kept; names come from mapping.txt."""
    data_set = open_set("mstcn", mstcn_set)
    assert data_set.lists == {"train.split1.bundle": ("rgb-01-1", "rgb-03-1"), "test.split1.bundle": ("rgb-02-1",)}
    video = read_one("mstcn", mstcn_set, "rgb-02-1", tail="strict")
    assert video.phases.tolist() == [2, 0, 1]
    assert read_one("mstcn", mstcn_set, "rgb-02-1", fps=30.0, tail="strict").phases.tolist()[-1] == 1
    ignored = read_one("mstcn", mstcn_set, "rgb-02-1", names=["add_oil", "cut tomato"], ignored=("SIL",))
    assert ignored.phases.tolist() == [NONE, 1, 0]


def test_mstcn_features_without_frames(mstcn_set: Path, write_text: Writer) -> None:
    write_text(mstcn_set / "features" / "rgb-01-1.npy", "x")
    assert open_set("mstcn", mstcn_set).video_ids == ["rgb-01-1", "rgb-02-1", "rgb-03-1"]
    (mstcn_set / "videos").rename(mstcn_set / "elsewhere")
    with pytest.raises(DataError, match=r"holds features that some encoder has made .*Put the videos into videos/"):
        open_set("mstcn", mstcn_set)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 a\n0 b\n", r"mapping\.txt:2: id 0 stands twice, for 'a' and 'b'"),
        ("0 a\n1 b\n3 c\n", r"mapping\.txt:3: id 3 follows 1; expected ids 0, 1, 2"),
        ("1 a\n2 b\n", r"mapping\.txt:1: id 1 follows -1"),
        ("0 a\n1 a\n", r"mapping\.txt:2: the name 'a' stands twice"),
        ("0 a\nb\n", r"mapping\.txt:2: read 'b', 1 columns"),
        ("", r"mapping\.txt is empty"),
    ],
)
def test_bad_mappings(text: str, message: str, tmp_path: Path, write_text: Writer) -> None:
    write_text(tmp_path / "mapping.txt", text)
    with pytest.raises(DataError, match=message):
        find_format("mstcn").names_in(tmp_path)


def test_a_mapping_in_any_order(tmp_path: Path, write_text: Writer) -> None:
    write_text(tmp_path / "mapping.txt", "2 c\n0 a b\n1 b")
    assert find_format("mstcn").names_in(tmp_path) == ("a b", "b", "c")


# --- what a number means ---

AUTOLAPARO_NAMES = find_format("autolaparo").names_in(Path())


@pytest.mark.parametrize(
    ("names", "phases"),
    [
        (AUTOLAPARO_NAMES, ["Preparation", "Washing", "Suturing"]),
        (AUTOLAPARO_NAMES[::-1], ["Preparation", "Washing", "Suturing"]),
        (("Anaesthesia", *AUTOLAPARO_NAMES), ["Preparation", "Washing", "Suturing"]),
        (tuple("abcdefg"), ["a", "g", "f"]),
    ],
)
def test_a_number_means_the_same_phase_whatever_the_order_of_names(
    names: tuple[str, ...], phases: list[str], tmp_path: Path, write_film: Writer, write_text: Writer
) -> None:
    write_film(tmp_path / "videos" / "01.mp4", 75)
    write_text(tmp_path / "labels" / "label_01.txt", "Frame\tPhase\n1\t1\n2\t7\n3\t6\n")
    video = read_one("autolaparo", tmp_path, "01", names=list(names))
    assert [names[phase] for phase in video.phases.tolist()] == phases


def test_a_number_of_a_phase_that_is_not_wanted(tmp_path: Path, write_film: Writer, write_text: Writer) -> None:
    write_film(tmp_path / "videos" / "01.mp4", 50)
    write_text(tmp_path / "labels" / "label_01.txt", "Frame\tPhase\n1\t1\n2\t7\n")
    with pytest.raises(DataError, match=r"label_01\.txt:3: the phase is 7, Washing; expected one of Preparation, Sut"):
        read_one("autolaparo", tmp_path, "01", names=["Preparation", "Suturing"])


def test_numbers_count_in_the_mapping(tmp_path: Path, write_film: Writer, write_text: Writer) -> None:
    write_film(tmp_path / "a.mp4", 50)
    write_text(tmp_path / "mapping.txt", "0 x\n1 y\n")
    write_text(tmp_path / "a.csv", "second,phase\n0,0\n1,y\n")
    write_text(tmp_path / "videos.csv", "video,annotation\na.mp4,a.csv\n")
    assert read_one("csv", tmp_path, "a", names=["y", "x"]).phases.tolist() == [1, 0]


# --- data sets of one's own ---


@pytest.mark.parametrize("video_id", ["../../evil", "b/c", "b\\c", "..", "a" * 201])
def test_an_id_that_names_no_file(video_id: str, tmp_path: Path, write_text: Writer) -> None:
    write_text(tmp_path / "videos.csv", f"video,annotation,id\na.mp4,a.csv,{video_id}\n")
    with pytest.raises(DataError, match=r"videos\.csv:2: the video's id .* cannot name a file"):
        open_set("csv", tmp_path, ["a", "b"])


@pytest.mark.parametrize(("first", "warns"), [(0, False), (1, False), (25, True), (9998, True)])
def test_frames_that_start_late_are_said(
    first: int, warns: bool, tmp_path: Path, write_images: Writer, write_text: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    write_images(tmp_path / "frames" / "v", {f"{first + k}.png": k for k in range(3)})
    write_text(tmp_path / "annotations" / "v.csv", "phase\na\nb\na\n")
    assert read_one("frames", tmp_path, "v", names=["a", "b"], frame_rate=1).phases.tolist() == [0, 1, 0]
    assert (f"is number {first}, and is taken for the video's first" in caplog.text) == warns
    write_text(tmp_path / "labels.txt", "".join(f"v/{first + k}.png a\n" for k in range(3)))
    caplog.clear()
    read_one("frames", tmp_path, "v", names=["a", "b"], frame_rate=1)
    assert not caplog.text  # labels by name cannot be shifted


def test_one_row_for_a_long_video_is_said(
    tmp_path: Path, write_film: Writer, write_text: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    write_film(tmp_path / "a.mp4", 75)
    write_text(tmp_path / "a.csv", "second,phase\n0,b\n")
    write_text(tmp_path / "videos.csv", "video,annotation\na.mp4,a.csv\n")
    assert read_one("csv", tmp_path, "a", names=["a", "b"]).phases.tolist() == [1, 1, 1]
    assert "the one row of" in caplog.text


CSV_ANNOTATIONS = {
    "rows": "frame,phase\n" + rows(["b"] * 25 + ["a"] * 50, separator=","),
    "sparse rows": "frame;phase\n0;b\n25;a\n50;a\n",
    "seconds": "second\tphase\n0\tb\n1\ta\n2\ta\n",
    "lines": "phase\n" + "b\n" * 25 + "a\n" * 50,
    "intervals in seconds": "start_seconds,end_seconds,phase\n1,3,a\n0,1.0,b\n",
    "intervals in ms": "start_ms,end_ms,phase\n0,1000,b\n1000,3000,a\n",
    "intervals in frames": "start_frame,end_frame,phase\n25,75,a\n0,25,b\n",
    "intervals in frames, inclusive": "start_frame,last_frame,phase\n25,74,a\n0,24,b\n",
    "ids": "second,phase\n0,1\n1,0\n2,0\n",
    "columns in another order": "phase,end_seconds,start_seconds\na,3,1\nb,1,0\n",
}


@pytest.mark.parametrize("kind", CSV_ANNOTATIONS)
@pytest.mark.parametrize("from_frames", [False, True])
def test_csv(
    kind: str, from_frames: bool, tmp_path: Path, write_film: Writer, write_images: Writer, write_text: Writer
) -> None:
    write_text(tmp_path / "labels" / "case 1.csv", CSV_ANNOTATIONS[kind])
    if from_frames:
        write_images(tmp_path / "clips" / "case 1", {f"{k}.png": k for k in range(75)})
    else:
        write_film(tmp_path / "clips" / "case 1.mp4", 75)
    name = "case 1" if from_frames else "case 1.mp4"
    write_text(tmp_path / "videos.csv", f"video,annotation,split,fps\nclips/{name},labels/case 1.csv,train,25\n")
    assert open_set("csv", tmp_path, ["a", "b"]).lists == {"train": ["case 1"]}
    video = read_one("csv", tmp_path, "case 1", names=["a", "b"], tail="strict")
    assert video.phases.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("video,split\na.mp4,train\n", r"videos\.csv:1: read the columns video,split; expected video,annotation"),
        ("video,annotation,phase\na.mp4,a.csv,1\n", r"videos\.csv:1: read the columns"),
        ("video,annotation\na.mp4,a.csv\nb/a.mp4,b.csv\n", r"videos\.csv:3: the video a stands twice"),
        ("video,annotation\n,a.csv\n", r"videos\.csv:2: the column video is empty"),
        ("video,annotation,fps\na.mp4,a.csv,fast\n", r"videos\.csv:2: fps is 'fast'"),
        ("video,annotation,fps\na.mp4,a.csv,0\n", r"videos\.csv:2: fps is 0; expected a number above 0"),
        ("video,annotation\na.mp4\n", r"videos\.csv:2: read 1 columns; expected 2"),
    ],
)
def test_bad_csv(table: str, message: str, tmp_path: Path, write_text: Writer) -> None:
    write_text(tmp_path / "videos.csv", table)
    with pytest.raises(DataError, match=message):
        open_set("csv", tmp_path, ["a", "b"])


def test_csv_names_what_is_missing(tmp_path: Path, write_text: Writer) -> None:
    with pytest.raises(DataError, match=r"there is no .*videos\.csv"):
        open_set("csv", tmp_path, ["a", "b"])
    with pytest.raises(DataError, match=r"there is no .*mapping\.txt; expected `id name`"):
        find_format("csv").names_in(tmp_path)
    write_text(tmp_path / "videos.csv", "video,annotation,id\na.mp4,a.csv,first\n")
    with pytest.raises(DataError, match=r"missing:\n  .*a\.mp4\n  .*a\.csv"):
        read_one("csv", tmp_path, "first", names=["a", "b"])
    write_text(tmp_path / "a.csv", "phase\na\n")
    with pytest.raises(DataError, match=r"1 file\(s\) of the data set are missing:\n  .*a\.mp4\n"):
        read_one("csv", tmp_path, "first", names=["a", "b"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,phase\n0,a\n", r"x\.csv:1: read the columns time,phase; expected one of: frame,phase; second,phase"),
        ("second,phase\n0,a\n1,c\n", r"x\.csv:3: unknown phase 'c'; expected one of a, b"),
        ("second,phase\n0,2\n", r"x\.csv:2: the phase is '2'; expected a whole number from 0 to 1"),
        ("second,phase\n0,-1\n", r"x\.csv:2: unknown phase '-1'"),
        (
            "start_seconds,end_seconds,phase\n2,1,a\n",
            r"x\.csv:2: the interval is from 2 to 1; expected an end that is not",
        ),
        (
            "start_seconds,end_seconds,phase\n0,2,a\n1,3,b\n",
            r"x\.csv:3: b, 1 to 3, overlaps a, 0 to 2, of line 2; expected no overlap, or both in data\.overlap_prio",
        ),
        ("start_frame,end_frame,phase\n0.5,3,a\n", r"x\.csv:2: the frame number is '0\.5'"),
    ],
)
def test_bad_annotation_files(
    text: str, message: str, tmp_path: Path, write_images: Writer, write_text: Writer
) -> None:
    write_images(tmp_path / "frames" / "x", {f"{k}.png": k for k in range(1, 4)})
    write_text(tmp_path / "annotations" / "x.csv", text)
    with pytest.raises(DataError, match=message):
        read_one("frames", tmp_path, "x", names=["a", "b"], frame_rate=1.0)


def test_frames(tmp_path: Path, write_images: Writer, write_text: Writer, read_number: Reader) -> None:
    """Case 80: by the number in the name, strangers left out."""
    folder = write_images(tmp_path / "frames" / "video 1", {f"img_{k}.jpg": k for k in range(1, 13)})
    for stranger in ("Thumbs.db", ".DS_Store", "._img_1.jpg"):
        (folder / stranger).write_bytes(b"x")
    write_text(tmp_path / "annotations" / "video 1.txt", "start_seconds\tend_seconds\tphase\n0\t2\ta\n2\t4\tb\n")
    video = read_one("frames", tmp_path, "video 1", names=["a", "b"], frame_rate=3.0)
    assert spell(video, read_number) == [1, 4, 7, 10]
    assert video.phases.tolist() == [0, 0, 1, 1]
    with pytest.raises(DataError, match=r"video 1 is a folder of frames, .* give data\.frame_rate"):
        read_one("frames", tmp_path, "video 1", names=["a", "b"])


def test_a_list_of_images(tmp_path: Path, write_images: Writer, write_text: Writer, read_number: Reader) -> None:
    """Case 87: paths with blanks, divided at the last blank; what is not listed has no label."""
    write_images(tmp_path / "frames" / "video 26", {f"img {k}.jpg": k for k in range(100, 105)})
    write_text(
        tmp_path / "labels.txt", "video 26/img 103.jpg 1\nvideo 26/img 100.jpg b\nframes\\video 26\\img 101.jpg 0\n"
    )
    video = read_one("frames", tmp_path, "video 26", names=["a", "b"], frame_rate=1.0)
    assert spell(video, read_number) == [100, 101, 102, 103, 104]
    assert video.phases.tolist() == [1, 0, NONE, 1, NONE]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("img.jpg 1\n", r"labels\.txt:1: read 'img\.jpg 1'; expected a line such as video01/img_000001\.jpg name"),
        ("x/9.png\n", r"labels\.txt:1: read 'x/9\.png'"),
        ("x/9.png 1\n", r"labels\.txt:1: there is no image 9\.png in .*x"),
        ("x/1.png 1\nx/1.png 1\n", r"labels\.txt:2: the image 1\.png stands in line 1 already"),
        ("x/1.png c\n", r"labels\.txt:1: unknown phase 'c'"),
        ("y/1.png 1\n", r"labels\.txt has no line for an image of .*x"),
    ],
)
def test_bad_lists_of_images(text: str, message: str, tmp_path: Path, write_images: Writer, write_text: Writer) -> None:
    write_images(tmp_path / "frames" / "x", {f"{k}.png": k for k in range(1, 4)})
    write_text(tmp_path / "labels.txt", text)
    with pytest.raises(DataError, match=message):
        read_one("frames", tmp_path, "x", names=["a", "b"], frame_rate=1.0)


# --- folders of frames in the other formats ---


@pytest.mark.parametrize(
    ("names", "frame_rate", "shown"),
    [
        ([f"{k}.jpg" for k in range(1, 5)], 1.0, [1, 2, 3, 4]),  # taken once a second
        ([f"{25 * k:08d}.png" for k in range(4)], 25.0, [0, 25, 50, 75]),  # every 25th frame, by its own number
        ([f"img_{k:03d}.png" for k in range(8)], 2.0, [0, 2, 4, 6]),
    ],
)
def test_cholec80_from_frames(
    names: list[str],
    frame_rate: float,
    shown: list[int],
    tmp_path: Path,
    write_images: Writer,
    write_text: Writer,
    read_number: Reader,
) -> None:
    """Case 77: rows count 25 a second, however many frames were taken; tools have a row per second."""
    numbers = {name: int("".join(letter for letter in name if letter.isdigit())) for name in names}
    write_images(tmp_path / "frames" / "video01", numbers)
    labels = ["Preparation"] * 50 + ["ClippingCutting"] * 50
    write_text(tmp_path / "phase_annotations" / "video01-phase.txt", "Frame\tPhase\n" + rows(labels))
    tools = "".join(f"{25 * k}" + "".join(f"\t{int(j == k)}" for j in range(7)) + "\n" for k in range(4))
    write_text(
        tmp_path / "tool_annotations" / "video01-tool.txt",
        "Frame\tGrasper\tBipolar\tHook\tScissors\tClipper\tIrrigator\tSpecimenBag\n" + tools,
    )
    video = read_one("cholec80", tmp_path, "video01", frame_rate=frame_rate)
    assert spell(video, read_number) == shown
    assert video.phases.tolist() == [0, 0, 2, 2]
    assert video.tools is not None
    assert video.tools.argmax(1).tolist() == [0, 1, 2, 3]


def test_a_wrong_frame_rate_is_noticed(tmp_path: Path, write_images: Writer, write_text: Writer) -> None:
    write_images(tmp_path / "frames" / "video01", {f"{k}.jpg": k for k in range(1, 5)})
    write_text(tmp_path / "phase_annotations" / "video01-phase.txt", "Frame\tPhase\n" + rows(["Preparation"] * 100))
    with pytest.raises(DataError, match=r"video01 lasts 0\.16 s, but .* is for 4\.00 s \(at 25 a second\)"):
        read_one("cholec80", tmp_path, "video01", frame_rate=25.0)


def test_videos_and_frames_need_a_choice(
    tmp_path: Path, write_film: Writer, write_images: Writer, write_text: Writer
) -> None:
    write_film(tmp_path / "videos" / "video01.mp4", 50)
    write_images(tmp_path / "frames" / "video01", {f"{k}.jpg": k for k in range(1, 3)})
    write_text(tmp_path / "phase_annotations" / "video01-phase.txt", "Frame\tPhase\n" + rows(["Preparation"] * 50))
    labels = Labels(find_format("cholec80").names_in(tmp_path))
    with pytest.raises(DataError, match=r"say which with data\.frames_from=videos or frames"):
        find_format("cholec80").open(tmp_path, labels)
    for frames_from, name in (("videos", "video01.mp4"), ("frames", "video01")):
        (entry,) = find_format("cholec80").open(tmp_path, labels, frames_from=frames_from).entries
        assert entry.path.name == name
    with pytest.raises(ValueError, match="frames_from is 'film'"):
        find_format("cholec80").open(tmp_path, labels, frames_from="film")


def test_a_missing_frame_is_an_error(tmp_path: Path, write_images: Writer, write_text: Writer) -> None:
    write_images(tmp_path / "frames" / "x", {f"{k}.png": k for k in (1, 2, 4)})
    write_text(tmp_path / "annotations" / "x.csv", "second,phase\n0,a\n")
    with pytest.raises(DataError, match="frame 3 is missing"):
        read_one("frames", tmp_path, "x", names=["a", "b"], frame_rate=1.0)


# --- alignment ---


@pytest.mark.parametrize("rate", [25, 30, Fraction(30000, 1001)])
def test_intervals_in_frames_of_another_rate(
    rate: Fraction | int, tmp_path: Path, write_film: Writer, write_text: Writer
) -> None:
    """The annotator counted 25 a second, whatever the file has: data.annotation_fps, or fps in the table."""
    write_film(tmp_path / "a.mp4", int(4 * rate), rate)
    write_text(tmp_path / "a.csv", "start_frame,end_frame,phase\n0,25,a\n25,75,b\n75,99,a\n")
    write_text(tmp_path / "videos.csv", "video,annotation,fps\na.mp4,a.csv,25\n")
    assert read_one("csv", tmp_path, "a", names=["a", "b"]).phases.tolist()[:4] == [0, 1, 1, 0]
    write_text(tmp_path / "videos.csv", "video,annotation\na.mp4,a.csv\n")
    assert read_one("csv", tmp_path, "a", names=["a", "b"], annotation_fps=25.0).phases.tolist()[:4] == [0, 1, 1, 0]


def test_a_moment_on_a_border_is_behind_it(tmp_path: Path, write_film: Writer, write_text: Writer) -> None:
    """0.29 * 100 is 28.999999999999996 in floats; sample 29 of 100 a second is at 290 ms all the same."""
    write_film(tmp_path / "a.mp4", 100, 100)
    write_text(
        tmp_path / "a.csv", "start_ms,end_ms,phase\n" + "".join(f"{10 * k},{10 * k + 10},{k % 2}\n" for k in range(100))
    )
    write_text(tmp_path / "videos.csv", "video,annotation\na.mp4,a.csv\n")
    phases = read_one("csv", tmp_path, "a", names=["a", "b"], fps=100.0).phases
    assert phases.tolist() == [k % 2 for k in range(100)]
    write_text(
        tmp_path / "a.csv", "start_frame,end_frame,phase\n" + "".join(f"{k},{k + 1},{k % 2}\n" for k in range(100))
    )
    assert read_one("csv", tmp_path, "a", names=["a", "b"], fps=100.0, annotation_fps=100.0).phases.equal(phases)


@pytest.mark.parametrize("stamps", ["constant", "variable", "late start"])
def test_intervals_in_seconds_do_not_care_for_frames(
    stamps: str, tmp_path: Path, write_film: Writer, write_text: Writer
) -> None:
    times = {
        "constant": np.arange(100),
        "variable": np.concatenate([np.arange(50), 50 + np.arange(50) * 2]),
        "late start": np.arange(100) + 1,
    }[stamps]
    write_film(tmp_path / "a.mp4", 100, stamps=times.tolist(), time_base=Fraction(1, 25))
    write_text(tmp_path / "a.csv", "start_seconds,end_seconds,phase\n0,2,a\n2,100,b\n")
    write_text(tmp_path / "videos.csv", "video,annotation\na.mp4,a.csv\n")
    with pytest.raises(DataError, match=r"a\.csv is for 100\.00 s"):
        read_one("csv", tmp_path, "a", names=["a", "b"])
    write_text(tmp_path / "a.csv", "start_seconds,end_seconds,phase\n0,2,a\n2,4,b\n")
    video = read_one("csv", tmp_path, "a", names=["a", "b"])
    assert video.phases.tolist() == [0, 0, 1, 1, *([NONE] * 2 if stamps == "variable" else [])]


def test_gaps_have_no_label(
    tmp_path: Path, write_images: Writer, write_text: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 92: 200 frames, labels for 37 to 104 and 123 to 199: 55 without one, none of them 0."""
    write_images(tmp_path / "frames" / "x", {f"{k}.png": k for k in range(200)})
    write_text(tmp_path / "annotations" / "x.csv", "start_frame,last_frame,phase\n37,104,a\n123,199,b\n")
    video = read_one("frames", tmp_path, "x", names=["a", "b"], frame_rate=1.0)
    assert len(video) == len(video.frames) == 200
    assert video.phases.tolist() == [NONE] * 37 + [0] * 68 + [NONE] * 18 + [1] * 77
    assert int((video.phases == NONE).sum()) == 55
    (record,) = caplog.records
    assert "18% of its frames (0.0 s to 37.0 s) have no label" in record.message
    with pytest.raises(DataError, match=r"55 of 200 sampled frames have no label, the first at 0\.00 s"):
        read_one("frames", tmp_path, "x", names=["a", "b"], frame_rate=1.0, unlabelled="error")


def test_a_video_without_any_label_is_said(
    tmp_path: Path, write_images: Writer, write_text: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    write_images(tmp_path / "frames" / "x", {f"{k}.png": k for k in range(3)})
    write_text(tmp_path / "annotations" / "x.csv", "second,phase\n0,-1\n1,-1\n2,-1\n")
    video = read_one("frames", tmp_path, "x", names=["a", "b"], frame_rate=1.0, ignored=("-1",))
    assert video.phases.tolist() == [NONE] * 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "3 of 3 sampled frames have no label" in caplog.text


def test_overlaps_by_priority(tmp_path: Path, write_images: Writer, write_text: Writer) -> None:
    write_images(tmp_path / "frames" / "x", {f"{k}.png": k for k in range(8)})
    write_text(
        tmp_path / "annotations" / "x.csv", "start_seconds,end_seconds,phase\n0,8,rest\n2,5,cut\n4,6,clip\n4.5,6,clip\n"
    )
    names = ["rest", "cut", "clip"]
    for priority, expected in {
        ("clip", "cut", "rest"): [0, 0, 1, 1, 2, 2, 0, 0],
        ("cut", "clip", "rest"): [0, 0, 1, 1, 1, 2, 0, 0],
        ("rest", "cut", "clip"): [0] * 8,
    }.items():
        video = read_one("frames", tmp_path, "x", names=names, frame_rate=1.0, priority=priority)
        assert video.phases.tolist() == expected
    with pytest.raises(DataError, match="overlap_priority names clipp; expected some of rest, cut, clip"):
        read_one("frames", tmp_path, "x", names=names, frame_rate=1.0, priority=("clipp",))


# --- names of every kind ---


@pytest.mark.parametrize("video_id", ["video 01", "case.v2.01", "胆嚢 01", "Операция 1", "été"])
@pytest.mark.parametrize("from_frames", [False, True])
def test_names_that_are_not_ascii(
    video_id: str, from_frames: bool, tmp_path: Path, write_film: Writer, write_images: Writer, write_text: Writer
) -> None:
    """Case 87."""
    root = tmp_path / "Vidéos été" / "Операция 1" / "胆嚢 01"
    if from_frames:
        write_images(root / "frames" / video_id, {f"{k}.png": k for k in range(50)})
    else:
        write_film(root / "videos" / f"{video_id}.mp4", 50)
    labels = ["Preparation"] * 25 + ["ClippingCutting"] * 25
    write_text(root / "phase_annotations" / f"{video_id}-phase.txt", "Frame\tPhase\n" + rows(labels))
    assert open_set("cholec80", root).video_ids == [video_id]
    assert read_one("cholec80", root, video_id, frame_rate=25.0).phases.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("preparation ", None),
        ("preparation", None),
        ("Preparation", r"x\.csv:2: unknown phase 'Preparation'; expected one of preparation, calot triangle"),
        ("Calot Triangle Dissection", r"x\.csv:2: unknown phase 'Calot Triangle Dissection'"),
    ],
)
def test_spelling_of_phases(
    text: str, message: str | None, tmp_path: Path, write_images: Writer, write_text: Writer
) -> None:
    """Case 91: blanks at the end do not matter, all else does."""
    write_images(tmp_path / "frames" / "x", {"1.png": 1})
    write_text(tmp_path / "annotations" / "x.csv", f"second,phase\n0,{text}\n")
    names = ["preparation", "calot triangle"]
    if message is None:
        assert read_one("frames", tmp_path, "x", names=names, frame_rate=1.0).phases.tolist() == [0]
    else:
        with pytest.raises(DataError, match=message):
            read_one("frames", tmp_path, "x", names=names, frame_rate=1.0)


def test_an_id_that_the_names_lack_is_declared_as_no_label(
    tmp_path: Path, write_images: Writer, write_text: Writer
) -> None:
    """Case 91: labels use 0, and the list of names begins at 1: 0 is background, and must be said to be."""
    write_images(tmp_path / "frames" / "x", {f"{k}.png": k for k in range(1, 4)})
    write_text(tmp_path / "annotations" / "x.csv", "second,phase\n0,background\n1,cut\n2,clip\n")
    with pytest.raises(DataError, match=r"x\.csv:2: unknown phase 'background'"):
        read_one("frames", tmp_path, "x", names=["cut", "clip"], frame_rate=1.0)
    video = read_one("frames", tmp_path, "x", names=["cut", "clip"], frame_rate=1.0, ignored=("background",))
    assert video.phases.tolist() == [NONE, 0, 1]


def test_videos_without_annotation_are_all_named(tmp_path: Path, write_film: Writer, write_text: Writer) -> None:
    """Case 95: three videos, two annotations; what is not asked for need not have one."""
    for number in (1, 2, 3):
        write_film(tmp_path / "videos" / f"video{number:02d}.mp4", 25)
        if number != 2:
            path = tmp_path / "phase_annotations" / f"video{number:02d}-phase.txt"
            write_text(path, "Frame\tPhase\n" + rows(["Preparation"] * 25))
    data_set = open_set("cholec80", tmp_path)
    options: dict[str, Any] = {"fps": 1.0, "image_size": 16, "cache_dir": None, "progress": False}
    with pytest.raises(DataError, match=r"1 file\(s\) of the data set are missing:\n  .*video02-phase\.txt\nadd"):
        read_videos(data_set, data_set.video_ids, **options)
    assert len(read_videos(data_set, ["video01", "video03"], **options)) == 2


# --- damage ---


@pytest.mark.parametrize("corrupt", ["error", "repeat"])
def test_a_damaged_stretch_moves_no_label(
    corrupt: str, tmp_path: Path, write_images: Writer, write_text: Writer, read_number: Reader, caplog: Any
) -> None:
    """Images 4 and 5 are broken: an error, or the last good one three times, said in the log; no label moves."""
    folder = write_images(tmp_path / "frames" / "x", {f"{k}.png": k for k in range(1, 9)})
    for number in (4, 5):
        (folder / f"{number}.png").write_bytes(b"")
    write_text(tmp_path / "annotations" / "x.csv", "second,phase\n" + rows(["a"] * 5 + ["b"] * 3, separator=","))
    options: dict[str, Any] = {"names": ["a", "b"], "frame_rate": 1.0, "cache_dir": tmp_path / "cache"}
    if corrupt == "error":
        with pytest.raises(DataError, match=r"4\.png cannot be decoded"):
            read_one("frames", tmp_path, "x", **options)
        return
    video = read_one("frames", tmp_path, "x", corrupt="repeat", **options)
    assert spell(video, read_number) == [1, 2, 3, 3, 3, 6, 7, 8]
    assert video.phases.tolist() == [0] * 5 + [1] * 3
    assert "2 of 8 sampled frames" in caplog.text
    caplog.clear()
    read_one("frames", tmp_path, "x", corrupt="repeat", **options)  # from the cache: said again
    assert "2 of 8 sampled frames" in caplog.text
    with pytest.raises(DataError, match="2 of 8 sampled frames cannot be decoded"):
        read_one("frames", tmp_path, "x", **options)
