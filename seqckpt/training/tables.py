"""Tables on disk, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from seqckpt.atomic import write_text

__all__ = ["write_table"]


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV, whole or not at all; the columns are those of the first row."""
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
