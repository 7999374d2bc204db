"""Annotation tables as text: strict about what they say, lenient about how it is typed.

Accepted: a byte-order mark, CRLF, blank lines, spaces for tabs, blanks at the ends of lines, a missing final newline.
Everything else that is not as the format says is a DataError with file, line, what was read and what was expected;
nothing is guessed, repaired or skipped.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from seqckpt.errors import DataError

__all__ = ["Row", "find_step", "quote", "read_lines", "read_rows", "read_table"]

_LARGEST = 10**9
_SEPARATORS = "\t;,"


class Row(NamedTuple):
    """A line of a table, with where it stands; blanks around fields are gone."""

    path: Path
    line: int
    fields: tuple[str, ...]

    def error(self, message: str) -> DataError:
        """Return a DataError that begins with file and line."""
        return DataError(f"{self.path}:{self.line}: {message}")

    def whole(self, column: int, what: str = "the frame number") -> int:
        """Return a field as a whole number from 0. Raises DataError where it is none."""
        text = self.fields[column]
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _LARGEST):
            raise self.error(f"{what} is {quote(text)}; expected a whole number from 0")
        return int(text)

    def number(self, column: int, what: str) -> float:
        """Return a field as a number from 0. Raises DataError where it is none."""
        text = self.fields[column]
        if not re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", text, re.ASCII) or not float(text) <= _LARGEST:
            raise self.error(f"{what} is {quote(text)}; expected a number from 0, such as 12.5")
        return float(text)


def read_rows(
    path: Path,
    columns: Sequence[str],
    *,
    has_header: bool = True,
    separator: str | None = None,
    free_text: bool = False,
) -> Iterator[Row]:
    """Yield the rows of a table of known columns, which is not empty; with `has_header`, the first line names these.

    `separator` None: tabs or blanks; with `free_text`, the last field may then hold blanks.
    Raises DataError where the file cannot be read, is empty, or a line has another number of columns.
    """
    lines = read_lines(path)
    shown = (separator or " ").join(columns)
    if not lines:
        raise DataError(f"{path} is empty; expected {f'the header {shown} and rows below it' if has_header else shown}")
    if has_header:
        number, first = lines.pop(0)
        if _split(path, number, first, separator, None) != list(columns):
            raise DataError(f"{path}:{number}: read {quote(first)}; expected the header {shown}")
        if not lines:
            raise DataError(f"{path} has a header and no rows below it; expected one row or more of {shown}")
    for number, line in lines:
        fields = _split(path, number, line, separator, len(columns) if free_text else None)
        if len(fields) != len(columns):
            raise DataError(
                f"{path}:{number}: read {quote(line)}, {len(fields)} columns; expected {len(columns)}: {shown}"
            )
        yield Row(path, number, tuple(fields))


def read_table(path: Path) -> tuple[Row, list[Row]]:
    """Read a table whose first line names its columns: that line, in lower case, and the rows.

    Columns are divided by tabs, semicolons or commas, whichever the first line has; fields may be quoted.
    Raises DataError where a row has another number of columns than the first line, or there is none.
    """
    lines = read_lines(path)
    if len(lines) < 2:
        found = "a header and no rows below it" if lines else "no lines"
        raise DataError(f"{path} has {found}; expected the names of the columns and rows below them")
    separator = next((letter for letter in _SEPARATORS if letter in lines[0][1]), ",")
    header, *rows = (Row(path, number, tuple(_split(path, number, line, separator, None))) for number, line in lines)
    header = Row(path, header.line, tuple(name.lower() for name in header.fields))
    for row in rows:
        if len(row.fields) != len(header.fields):
            raise row.error(
                f"read {len(row.fields)} columns; expected {len(header.fields)}: {separator.join(header.fields)}"
            )
    return header, rows


def find_step(rows: Iterable[Row], *, first: int = 0, step: int | None = None, what: str = "frame") -> int | None:
    """Return the even distance of the numbers in the first column; None where there is one row only.

    Raises DataError where the numbers are not first, first + step, first + 2 step, ...; `step` None: that of the
    first two rows.
    """
    found, previous, described = step, first - 1, f"the {what} number"
    for count, row in enumerate(rows):
        number = row.whole(0, described)
        if count == 0:
            if number != first:
                raise row.error(f"the first row is for {what} {number}; expected {what} {first}")
        else:
            if count == 1 and step is None and number > first:
                found = number - first
            expected = first + count * (found or 1)
            if number != expected:
                kind = "a gap" if number > expected else "a duplicate" if number == previous else "out of order"
                raise row.error(f"{what} {number} comes after {what} {previous} ({kind}); expected {what} {expected}")
        previous = number
    return found


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Return (number, text) of the lines of a file that are not blank, without the blanks at their ends."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}:{line}: not UTF-8 text, byte {error.start} is {error.object[error.start]:#04x}"
        ) from error
    lines = re.split(r"\r\n|\r|\n", text)  # not splitlines(), which also splits at a dozen rarer characters
    return [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]


def _split(path: Path, number: int, line: str, separator: str | None, num_columns: int | None) -> list[str]:
    """Split a line; where `num_columns` is given, the last of them may hold blanks."""
    if separator is not None:
        try:
            (fields,) = csv.reader([line], delimiter=separator, strict=True, skipinitialspace=True)
        except (csv.Error, ValueError) as error:
            raise DataError(f"{path}:{number}: read {quote(line)}, which is no row: {error}") from error
        return [field.strip() for field in fields]
    if num_columns is None:
        return line.split()
    if "\t" in line:
        return [field.strip() for field in line.split("\t")]
    return line.split(maxsplit=num_columns - 1)


def quote(text: str) -> str:
    """Return a text in quotation marks, shortened where it is long."""
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
