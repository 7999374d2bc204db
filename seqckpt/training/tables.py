"""Tables on disk, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from seqckpt.atomic import new_file

__all__ = ["write_table"]


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV, whole or not at all, one by one as they come; the columns are those of the first row."""
    rows = iter(rows)
    first = next(rows, None)
    with new_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        try:
            writer = csv.DictWriter(text, fieldnames=list(first or []), lineterminator="\n")
            writer.writeheader()
            writer.writerows(chain([] if first is None else [first], rows))
        finally:
            text.detach()  # writes what is left, and leaves the file to its owner
