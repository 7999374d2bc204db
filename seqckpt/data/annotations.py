"""Annotation tables as text: strict about what they say, lenient about how it is typed.

Accepted: a byte-order mark, CRLF, blank lines, spaces for tabs, blanks at the ends of lines, a missing final newline.
Everything else that is not as the format says is a DataError with file, line, what was read and what was expected;
nothing is guessed, repaired or skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqckpt.errors import DataError

__all__ = ["SpacedRows", "read_phase_table", "read_tool_table"]

_LARGEST_FRAME = 10**9


@dataclass(frozen=True)
class SpacedRows:
    """A table with a row at frames 0, step, 2 * step, ...: `values` uint8 (R, columns), `step` in video frames.

    `step` is None where there is one row only, so that its distance from the next is unknown.
    """

    values: NDArray[np.uint8]
    step: int | None


def read_phase_table(path: Path, names: Sequence[str]) -> NDArray[np.int64]:
    """Read `Frame<TAB>Phase` with one row per video frame, from 0: the phase of each frame, as an index into `names`.

    Returns int64 (R,). Raises DataError where the file is no such table, a name is unknown, or the frame numbers are
    not 0, 1, 2, ... .
    """
    ids = {name: number for number, name in enumerate(names)}
    phases: list[int] = []
    for line, fields in _read_rows(path, ("Frame", "Phase"), free_text=True):
        frame = _parse_frame(path, line, fields[0])
        if frame != len(phases):
            raise _wrong_frame(path, line, frame, previous=len(phases) - 1, expected=len(phases))
        if fields[1] not in ids:
            raise DataError(f"{path}:{line}: unknown phase {fields[1]!r}; expected one of {', '.join(names)}")
        phases.append(ids[fields[1]])
    return np.array(phases, np.int64)


def read_tool_table(path: Path, columns: Sequence[str]) -> SpacedRows:
    """Read `Frame` and one column of 0 or 1 per tool, with rows at evenly spaced video frames, from 0.

    Raises DataError where the file is no such table, a value is neither 0 nor 1, or the frame numbers are not 0, s,
    2 s, ... for some s.
    """
    step: int | None = None
    values: list[list[int]] = []
    for line, fields in _read_rows(path, ("Frame", *columns)):
        frame = _parse_frame(path, line, fields[0])
        if len(values) == 1 and frame > 0:
            step = frame
        expected = len(values) * (step or 1)
        if frame != expected:
            raise _wrong_frame(path, line, frame, previous=expected - (step or 1), expected=expected)
        for name, value in zip(columns, fields[1:], strict=True):
            if value not in ("0", "1"):
                raise DataError(f"{path}:{line}: {name} is {value!r}; expected 0 or 1")
        values.append([int(value) for value in fields[1:]])
    return SpacedRows(np.array(values, np.uint8), step)


def _read_rows(path: Path, header: Sequence[str], *, free_text: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of each row below the header; with `free_text`, the last field may hold blanks."""
    lines = [(number, line.strip()) for number, line in enumerate(_read_lines(path), start=1)]
    filled = [(number, line) for number, line in lines if line]
    if not filled:
        raise DataError(f"{path} is empty; expected the header {' '.join(header)} and rows below it")
    number, first = filled[0]
    if first.split() != list(header):
        raise DataError(f"{path}:{number}: read {_quote(first)}; expected the header {' '.join(header)}")
    if len(filled) == 1:
        raise DataError(f"{path} has a header and no rows below it; expected one row or more of {' '.join(header)}")
    for number, line in filled[1:]:
        fields = _split_row(line, len(header), free_text)
        if len(fields) != len(header):
            raise DataError(
                f"{path}:{number}: read {_quote(line)}, {len(fields)} columns; "
                f"expected {len(header)}: {' '.join(header)}"
            )
        yield number, fields


def _read_lines(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    return re.split(r"\r\n|\r|\n", text)  # not splitlines(), which also splits at a dozen rarer characters


def _split_row(line: str, num_columns: int, free_text: bool) -> list[str]:
    if not free_text:
        return line.split()
    if "\t" in line:
        return [field.strip() for field in line.split("\t")]
    return line.split(maxsplit=num_columns - 1)


def _parse_frame(path: Path, line: int, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) > _LARGEST_FRAME:
        raise DataError(f"{path}:{line}: the frame number is {_quote(text)}; expected a whole number from 0")
    return int(text)


def _wrong_frame(path: Path, line: int, frame: int, *, previous: int, expected: int) -> DataError:
    if previous < 0:
        return DataError(f"{path}:{line}: the first row is for frame {frame}; expected frame 0")
    kind = "a gap" if frame > expected else "a duplicate" if frame == previous else "out of order"
    return DataError(f"{path}:{line}: frame {frame} comes after frame {previous} ({kind}); expected frame {expected}")


def _quote(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
