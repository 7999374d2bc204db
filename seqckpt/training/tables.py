"""Tables on disk, as CSV.

Spreadsheets take a text that begins with = + - @ for a formula, and run it. Texts may come from anybody's data set
(names of phases), so such a one is written with a ' before it, which `unquote` takes away; numbers stay as they are.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from seqckpt.atomic import new_file

__all__ = ["quote", "unquote", "write_table"]

_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV, whole or not at all, one by one as they come; the columns are those of the first row."""
    rows = ({quote(name): quote(value) for name, value in row.items()} for row in rows)
    first = next(rows, None)
    with new_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        try:
            writer = csv.DictWriter(text, fieldnames=list(first or []), lineterminator="\n")
            writer.writeheader()
            writer.writerows(chain([] if first is None else [first], rows))
        finally:
            text.detach()  # writes what is left, and leaves the file to its owner


def quote(value: Any) -> Any:
    """Return what to write into a cell: a value, but a text that a spreadsheet would run with a ' before it.

    >>> quote("=1+1"), quote("'=1+1"), quote("clipping"), quote("-0.5"), quote(-0.5), quote("'s"), quote("-")
    ("'=1+1", "''=1+1", 'clipping', '-0.5', -0.5, "'s", "'-")
    """
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) and not _is_number(value) else value


def unquote(text: str) -> str:
    """Return the text that `quote` was given.

    >>> unquote("'=1+1"), unquote("''=1+1"), unquote("clipping"), unquote("'s")
    ('=1+1', "'=1+1", 'clipping', "'s")
    """
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
