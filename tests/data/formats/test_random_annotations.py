"""Random annotations in every format: valid ones come back equal however they are typed; whatever else a file holds,
a DataError names file and line, nothing else is raised, and nothing hangs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from seqckpt.data import Labels
from seqckpt.data.annotations import Row
from seqckpt.data.formats.annotation_file import read_annotation_file
from seqckpt.data.formats.autolaparo import read_label_table
from seqckpt.data.formats.cataract101 import lay_out_starts, read_start_table
from seqckpt.data.formats.cholec80 import TOOLS, read_phase_table, read_tool_table
from seqckpt.data.formats.frames import read_image_list
from seqckpt.data.formats.heichole import read_frame_csv
from seqckpt.data.formats.mstcn import read_label_lines
from seqckpt.data.label_track import Interval, LabelTrack, lay_out_intervals, lay_out_rows
from seqckpt.data.labels import read_mapping
from seqckpt.data.videos import IGNORE_INDEX
from seqckpt.errors import DataError

NAMES = ("first phase", "second", "Третья", "胆嚢摘出")
LABELS = Labels(NAMES)
IDS = st.lists(st.integers(0, len(NAMES) - 1), min_size=2, max_size=40)

Typed = tuple[list[list[str]], str]  # rows of cells, and what divides them


def as_cholec80(ids: Sequence[int]) -> Typed:
    return [["Frame", "Phase"], *([str(k), NAMES[i]] for k, i in enumerate(ids))], "\t"


def as_autolaparo(ids: Sequence[int]) -> Typed:
    return [["Frame", "Phase"], *([str(k), str(i + 1)] for k, i in enumerate(ids, 1))], "\t"


def as_heichole(ids: Sequence[int]) -> Typed:
    return [[str(k), str(i)] for k, i in enumerate(ids)], ","


def as_mstcn(ids: Sequence[int]) -> Typed:
    return [[NAMES[i]] for i in ids], "\t"


def as_frame_rows(ids: Sequence[int]) -> Typed:
    return [["frame", "phase"], *([str(k), NAMES[i]] for k, i in enumerate(ids))], ";"


def as_intervals(ids: Sequence[int]) -> Typed:
    rows = [[str(k), str(k + 1), NAMES[i]] for k, i in enumerate(ids)]
    return [["start_frame", "end_frame", "phase"], *reversed(rows)], ","


def as_inclusive_intervals(ids: Sequence[int]) -> Typed:
    return [["start_frame", "last_frame", "phase"], *([str(k), str(k), str(i)] for k, i in enumerate(ids))], "\t"


def as_starts(ids: Sequence[int]) -> Typed:
    rows = [["1", str(k), str(i + 1)] for k, i in enumerate(ids)]
    return [["VideoID", "FrameNo", "Phase"], *rows], ";"


def read_starts(path: Path, labels: Labels) -> LabelTrack:
    """Read a table of Cataract-101 that has one video, with as many frames as rows."""
    starts = read_start_table(path)
    for number, (row, *_) in starts.items():
        if number != "1":
            raise row.error(f"there is no video {number}")
    return lay_out_starts(path, starts["1"], len(starts["1"]), labels)


FORMATS: dict[str, tuple[Callable[[Sequence[int]], Typed], Callable[[Path, Labels], LabelTrack]]] = {
    "cholec80": (as_cholec80, read_phase_table),
    "autolaparo": (as_autolaparo, read_label_table),
    "heichole": (as_heichole, read_frame_csv),
    "mstcn": (as_mstcn, read_label_lines),
    "cataract101": (as_starts, read_starts),
    "rows of frames": (as_frame_rows, read_annotation_file),
    "intervals": (as_intervals, read_annotation_file),
    "inclusive intervals": (as_inclusive_intervals, read_annotation_file),
}


def type_table(table: Typed, draw: Callable[..., Any]) -> tuple[bytes, list[int]]:
    """Type rows as people's editors do, with any of the oddities that are to be accepted; and the line of each row."""
    rows, separator = table
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    trail = draw(st.sampled_from(["", " ", "  "]))
    lines = [separator.join(row) + trail for row in rows]
    numbers = list(range(1, len(rows) + 1))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(rows)))  # a blank line before this row
        lines.insert(numbers[place] - 1 if place < len(rows) else len(lines), draw(st.sampled_from(["", "  "])))
        numbers = [number + (row >= place) for row, number in enumerate(numbers)]
    text = draw(st.sampled_from(["", "\ufeff"])) + newline.join(lines) + draw(st.sampled_from(["", newline]))
    return text.encode(), numbers


@pytest.mark.parametrize("kind", FORMATS)
@given(ids=IDS, data=st.data())
def test_valid_annotations_come_back_equal(kind: str, ids: list[int], data: st.DataObject, tmp_path: Path) -> None:
    write, read = FORMATS[kind]
    path = tmp_path / "video 01 été.txt"
    path.write_bytes(type_table(write(ids), data.draw)[0])
    assert read(path, LABELS).at(range(len(ids) + 1)).tolist() == [*ids, IGNORE_INDEX]


@pytest.mark.parametrize("kind", FORMATS)
@given(ids=IDS, data=st.data())
def test_a_changed_cell_names_file_and_line(kind: str, ids: list[int], data: st.DataObject, tmp_path: Path) -> None:
    """One cell becomes what it cannot be; the error is about its line, or one that it no longer fits to."""
    write, read = FORMATS[kind]
    rows, separator = write(ids)
    line = data.draw(st.integers(int(kind == "autolaparo"), len(rows) - 1), label="row")  # its header may be any
    column = data.draw(st.integers(0, len(rows[line]) - 1), label="column")
    letters = st.characters(categories=["L", "N", "P", "S"], exclude_characters="\t;,\"'#")
    cell = data.draw(st.text(letters, min_size=1, max_size=12).filter(lambda text: not text.isdigit()), label="cell")
    if cell.lower() == rows[line][column].lower() or cell in NAMES or re.fullmatch(r"[0-9.]+", cell):
        return
    rows[line][column] = cell
    content, numbers = type_table((rows, separator), data.draw)
    path = tmp_path / "video01.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"video01\.txt:{numbers[line]}: "):
        read(path, LABELS)


@pytest.mark.parametrize("kind", ["cholec80", "autolaparo", "heichole", "rows of frames", "cataract101"])
@given(ids=IDS, data=st.data())
def test_a_doubled_row_names_file_and_line(kind: str, ids: list[int], data: st.DataObject, tmp_path: Path) -> None:
    """It would shift all labels behind it."""
    write, read = FORMATS[kind]
    rows, separator = write(ids)
    place = data.draw(st.integers(len(rows) - len(ids), len(rows) - 1))
    rows.insert(place, rows[place])
    content, numbers = type_table((rows, separator), data.draw)
    path = tmp_path / "video01.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"video01\.txt:({numbers[place]}|{numbers[place + 1]}): "):
        read(path, LABELS)


@pytest.mark.parametrize("kind", ["cholec80", "autolaparo", "heichole"])
@given(ids=IDS, data=st.data())
def test_a_row_left_out_names_file_and_line(kind: str, ids: list[int], data: st.DataObject, tmp_path: Path) -> None:
    write, read = FORMATS[kind]
    rows, separator = write(ids)
    place = data.draw(st.integers(len(rows) - len(ids), len(rows) - 2))  # the last one is missed by the video
    del rows[place]
    content, numbers = type_table((rows, separator), data.draw)
    path = tmp_path / "video01.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"video01\.txt:{numbers[place]}: "):
        read(path, LABELS)


CELLS = ["0", "1", "25", "-1", "second", "a", "", '"', "1e9", "9" * 30]
RANDOM = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace")),
    st.lists(st.lists(st.sampled_from(CELLS), max_size=4), max_size=9).map(
        lambda rows: "\n".join(",".join(row) for row in rows).encode()
    ),
)
HEADERS = (
    *("", "Frame\tPhase\n", "frame,phase\n", "start_seconds,end_seconds,phase\n", "start_ms;end_ms;phase\n", "phase\n"),
    "\t".join(["Frame", *TOOLS]) + "\n",
    "VideoID;FrameNo;Phase\n",
)


def complaint(read: Callable[[], object]) -> str | None:
    try:
        read()
    except DataError as error:
        return str(error)
    return None


@given(content=RANDOM, header=st.sampled_from(HEADERS))
def test_random_content_raises_nothing_but_data_errors(content: bytes, header: str, tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    path.write_bytes(header.encode() + content)
    readers: list[Callable[[], object]] = [
        *(lambda read=read: read(path, LABELS) for _, read in FORMATS.values()),  # type: ignore[misc]
        lambda: read_tool_table(path, TOOLS),
        lambda: read_mapping(path),
        lambda: read_image_list(path),
    ]
    for read in readers:
        assert "table.txt" in (complaint(read) or "table.txt")


# --- intervals by hand ---


@given(
    pieces=st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 15), st.integers(-1, len(NAMES) - 1)), min_size=1, max_size=12
    ),
    priority=st.permutations(NAMES),
)
def test_intervals_by_priority_are_those_painted_by_hand(
    pieces: list[tuple[int, int, int]], priority: Sequence[str]
) -> None:
    """From the last to the first in the priority, each paints over what is there."""
    labels = Labels(NAMES, priority=tuple(priority))
    pieces = [(start, length, label) for start, length, label in pieces if label >= 0]
    painted = np.full(50, IGNORE_INDEX)
    for name in reversed(priority):
        for start, length, label in pieces:
            if NAMES[label] == name:
                painted[start : start + length] = label
    row = Row(Path("t"), 1, ())
    intervals = [Interval(start, start + length, label, row) for start, length, label in pieces]
    track = lay_out_intervals(Path("t"), intervals, labels=labels, rate=1)
    assert track.at(np.arange(50)).tolist() == painted.tolist()
    assert track.at(np.arange(50) + 0.99).tolist() == painted.tolist()
    assert (track.starts[1:] >= track.ends[:-1]).all()


@given(pieces=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 15), st.integers(0, 3)), min_size=1, max_size=8))
def test_overlaps_without_priority_are_errors(pieces: list[tuple[int, int, int]]) -> None:
    owners: list[set[int]] = [set() for _ in range(50)]
    for start, length, label in pieces:
        for place in range(start, start + length):
            owners[place].add(label)
    intervals = [
        Interval(start, start + length, label, Row(Path("t.csv"), line, ()))
        for line, (start, length, label) in enumerate(pieces, 2)
    ]
    if max(map(len, owners)) > 1:
        with pytest.raises(DataError, match=r"t\.csv:\d+: .* overlaps .* of line \d+"):
            lay_out_intervals(Path("t.csv"), intervals, labels=LABELS, rate=None)
    else:
        track = lay_out_intervals(Path("t.csv"), intervals, labels=LABELS, rate=None)
        assert track.at(range(50)).tolist() == [next(iter(owner), IGNORE_INDEX) for owner in owners]


@given(ids=IDS, step=st.integers(1, 30))
def test_rows_stand_until_the_next(ids: list[int], step: int) -> None:
    track = lay_out_rows(Path("t"), ids, step=step)
    assert track.at(range(len(ids) * step)).tolist() == np.repeat(ids, step).tolist()
    assert (track.end, track.num_rows) == (len(ids) * step, len(ids))
    assert len(track.values) == 1 + int((np.diff(ids) != 0).sum())  # runs, not rows, are kept
