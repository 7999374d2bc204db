"""Annotation tables: valid ones come back equal however they are typed, others only ever raise DataError."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from seqckpt.data import Labels
from seqckpt.data.annotations import Row, find_step, read_lines, read_table
from seqckpt.data.formats.cholec80 import PHASES, TOOLS, read_phase_table, read_tool_table
from seqckpt.data.videos import IGNORE_INDEX
from seqckpt.errors import DataError

KNOWN = Labels(PHASES)
LABELS = st.lists(st.integers(0, len(PHASES) - 1), min_size=1, max_size=60)
TOOL_ROWS = st.lists(st.lists(st.integers(0, 1), min_size=7, max_size=7), min_size=1, max_size=30)


def type_table(rows: list[list[str]], draw: Callable[..., object]) -> bytes:
    """Type rows as people's editors do: any of the oddities that are to be accepted."""
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    gap = draw(st.sampled_from(["\t", " ", "   ", " \t"]))
    trail = draw(st.sampled_from(["", " ", "\t", "  "]))
    lines = [str(gap).join(row) + str(trail) for row in rows]
    for _ in range(draw(st.integers(0, 3))):  # type: ignore[call-overload]
        lines.insert(draw(st.integers(0, len(lines))), str(draw(st.sampled_from(["", "  "]))))  # type: ignore[call-overload]
    mark = draw(st.sampled_from(["", "\ufeff"]))
    return f"{mark}{str(newline).join(lines)}{draw(st.sampled_from(['', newline]))}".encode()


@given(labels=LABELS, data=st.data())
def test_valid_phases_come_back_equal(labels: list[int], data: st.DataObject, tmp_path: Path) -> None:
    rows = [["Frame", "Phase"], *([str(frame), PHASES[label]] for frame, label in enumerate(labels))]
    path = tmp_path / "video01-phase.txt"
    path.write_bytes(type_table(rows, data.draw))
    assert read_phase_table(path, KNOWN).at(range(len(labels) + 1)).tolist() == [*labels, IGNORE_INDEX]


@given(values=TOOL_ROWS, step=st.integers(1, 60), data=st.data())
def test_valid_tools_come_back_equal(values: list[list[int]], step: int, data: st.DataObject, tmp_path: Path) -> None:
    rows = [["Frame", *TOOLS], *([str(step * row), *map(str, tools)] for row, tools in enumerate(values))]
    path = tmp_path / "video01-tool.txt"
    path.write_bytes(type_table(rows, data.draw))
    table = read_tool_table(path, TOOLS)
    assert table.at(np.arange(len(values)) * step).tolist() == values
    assert table.at(np.arange(len(values)) * step + step - 1).tolist() == values
    assert (table.num_rows, table.end) == (len(values), len(values) * step if len(values) > 1 else np.inf)


@given(
    content=st.one_of(st.binary(max_size=300), st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace")))
)
def test_random_content_raises_nothing_but_data_errors(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    for header in (b"", b"Frame\tPhase\n", b"\t".join([b"Frame", *(tool.encode() for tool in TOOLS)]) + b"\n"):
        path.write_bytes(header + content)
        with contextlib.suppress(DataError):
            read_phase_table(path, KNOWN)
        with contextlib.suppress(DataError):
            read_tool_table(path, TOOLS)


@given(labels=st.lists(st.integers(0, 6), min_size=3, max_size=20), data=st.data())
def test_a_changed_cell_raises_an_error_with_file_and_line(
    labels: list[int], data: st.DataObject, tmp_path: Path
) -> None:
    rows = [["Frame", "Phase"], *([str(frame), PHASES[label]] for frame, label in enumerate(labels))]
    line = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.integers(0, 1))
    cell = data.draw(st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=12))
    if cell == rows[line][column] or (column == 1 and line > 0 and cell in PHASES):
        return
    rows[line][column] = cell
    path = tmp_path / "video01-phase.txt"
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(DataError, match=rf"video01-phase\.txt:{line + 1}: "):
        read_phase_table(path, KNOWN)


BAD_PHASES = {
    "empty": ("", r"t\.txt is empty; expected the header Frame Phase"),
    "blank": ("\n \n\t\n", r"t\.txt is empty"),
    "header only": ("Frame\tPhase\n", "a header and no rows"),
    "no header": ("0\tPreparation\n", r"t\.txt:1: read '0\\tPreparation'; expected the header"),
    "unknown phase": (
        "Frame\tPhase\n0\tTrocar\n",
        r"t\.txt:2: unknown phase 'Trocar'; expected one of Preparation, Cal",
    ),
    "blanks in the name": ("Frame\tPhase\n0\tCalot Triangle Dissection\n", "unknown phase 'Calot Triangle Dissection'"),
    "blanks in the name, no tab": ("Frame Phase\n0 Calot Triangle Dissection\n", "unknown phase 'Calot Triangle Diss"),
    "other case": ("Frame\tPhase\n0\tpreparation\n", "unknown phase 'preparation'"),
    "a number for a name": ("Frame\tPhase\n0\t3\n", "unknown phase '3'"),
    "too few columns": ("Frame\tPhase\n0\tPreparation\n1\n", r"t\.txt:3: read '1', 1 columns; expected 2"),
    "too many columns": ("Frame\tPhase\n0\tPreparation\t1\n", r"t\.txt:2: read .* 3 columns; expected 2"),
    "starts at 1": ("Frame\tPhase\n1\tPreparation\n", "the first row is for frame 1; expected frame 0"),
    "gap": ("Frame\tPhase\n0\tPreparation\n2\tPreparation\n", r"t\.txt:3: frame 2 comes after frame 0 \(a gap\)"),
    "duplicate": ("Frame\tPhase\n0\tPreparation\n0\tPreparation\n", r"frame 0 comes after frame 0 \(a duplicate\)"),
    "unsorted": (
        "Frame\tPhase\n0\tPreparation\n1\tPreparation\n2\tPreparation\n1\tPreparation\n",
        r"t\.txt:5: frame 1 comes after frame 2 \(out of order\); expected frame 3",
    ),
    "negative": ("Frame\tPhase\n-1\tPreparation\n", "the frame number is '-1'; expected a whole number"),
    "fraction": ("Frame\tPhase\n0.0\tPreparation\n", "the frame number is '0.0'"),
    "not a number": ("Frame\tPhase\nnan\tPreparation\n", "the frame number is 'nan'"),
    "huge": (f"Frame\tPhase\n{'9' * 6000}\tPreparation\n", r"the frame number is '9{50}"),
    "other digits": ("Frame\tPhase\n\u0660\tPreparation\n", "the frame number is '\u0660'"),
}


@pytest.mark.parametrize("kind", BAD_PHASES)
def test_bad_phase_tables(kind: str, tmp_path: Path) -> None:
    content, message = BAD_PHASES[kind]
    path = tmp_path / "t.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_phase_table(path, KNOWN)


HEADER = "\t".join(["Frame", *TOOLS])
ZEROS = "\t0" * 7
BAD_TOOLS = {
    "columns of another set": ("Frame\tGrasper\tHook\n0\t1\t0\n", "expected the header Frame Grasper Bipolar Hook"),
    "too few columns": (f"{HEADER}\n0\t1\t0\n", r"t\.txt:2: read .* 3 columns; expected 8"),
    "neither 0 nor 1": (f"{HEADER}\n0{ZEROS[:-1]}2\n", r"t\.txt:2: SpecimenBag is '2'; expected 0 or 1"),
    "minus one": (f"{HEADER}\n0\t-1{ZEROS[2:]}\n", r"t\.txt:2: Grasper is '-1'; expected 0 or 1"),
    "starts late": (f"{HEADER}\n25{ZEROS}\n", "the first row is for frame 25; expected frame 0"),
    "uneven": (
        f"{HEADER}\n0{ZEROS}\n25{ZEROS}\n75{ZEROS}\n",
        r"frame 75 comes after frame 25 \(a gap\); expected frame 50",
    ),
    "duplicate": (f"{HEADER}\n0{ZEROS}\n0{ZEROS}\n", r"t\.txt:3: frame 0 comes after frame 0 \(a duplicate\)"),
}


@pytest.mark.parametrize("kind", BAD_TOOLS)
def test_bad_tool_tables(kind: str, tmp_path: Path) -> None:
    content, message = BAD_TOOLS[kind]
    path = tmp_path / "t.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_tool_table(path, TOOLS)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes("Frame\tPhase\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"t\.txt:1: not UTF-8 text, byte 0 is 0xff"):
        read_phase_table(path, KNOWN)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.txt cannot be read: No such file"):
        read_phase_table(tmp_path / "absent.txt", KNOWN)


def test_names_with_blanks_may_be_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("Frame Phase\n0 first phase\n1 last  \n", encoding="utf-8")
    assert read_phase_table(path, Labels(("last", "first phase"))).at([0, 1]).tolist() == [1, 0]


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("separator", ["\t", ";", ",", ", "])
def test_a_table_says_its_columns_and_what_divides_them(separator: str, tmp_path: Path) -> None:
    rows = [["Start_Seconds", "Phase"], ["0.5", "first phase"], ["2", '"last"']]
    header, found = read_table(write(tmp_path / "t.csv", "\ufeff" + "\r\n\n".join(map(separator.join, rows))))
    assert header.fields == ("start_seconds", "phase")
    assert [(row.line, row.fields) for row in found] == [(3, ("0.5", "first phase")), (5, ("2", "last"))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"t\.csv has no lines; expected the names"),
        ("a,b\n", "a header and no rows"),
        ("a,b\n1\n", r"t\.csv:2: read 1 columns; expected 2: a,b"),
        ("a,b\n1,2,3\n", r"t\.csv:2: read 3 columns"),
        ('a,b\n1,"2\n', r"t\.csv:2: read .*, which is no row: unexpected end"),
        ("a,b\n1,2\0\n", r"t\.csv:2"),
    ],
)
def test_bad_tables(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(DataError, match=message):
        read_table(path)[1][0].number(1, "it")


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "1e3", "", ".", "1,5", "\u0661", "9" * 400])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(DataError, match=r"t\.csv:7: the end is .*; expected a number from 0, such as 12\.5"):
        Row(Path("t.csv"), 7, (text,)).number(0, "the end")


def test_numbers() -> None:
    assert [Row(Path("t"), 1, (text,)).number(0, "it") for text in ("0", "1.", ".5", "007.25")] == [0, 1, 0.5, 7.25]


@given(first=st.integers(0, 3), step=st.integers(1, 50), count=st.integers(1, 20))
def test_the_step_of_even_numbers(first: int, step: int, count: int) -> None:
    rows = [Row(Path("t"), k, (str(first + k * step),)) for k in range(count)]
    assert find_step(rows, first=first) == (step if count > 1 else None)


def test_lines_are_numbered_as_an_editor_does(tmp_path: Path) -> None:
    """Not as str.splitlines does, which also counts form feeds and their like."""
    path = write(tmp_path / "t.txt", "\ufeffa\x0cb\r\n\r\n  c \rd\u2028e\n\n")
    assert read_lines(path) == [(1, "a\x0cb"), (3, "c"), (4, "d\u2028e")]
