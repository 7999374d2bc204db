"""What a case leaves behind: tables in Markdown, the same figures as JSON, pictures; and the machine they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqckpt.atomic import write_text
from seqckpt.bench.hardware import describe_hardware

__all__ = ["Report", "markdown_table"]


@dataclass(frozen=True)
class _Picture:
    """A place in the Markdown for a picture that is drawn to a path."""

    path: Path
    title: str

    def __str__(self) -> str:
        return f"![{self.title}]({self.path.name})"


class Report:
    """Filled by a case while it measures; `write` makes `<case>.md` and `<case>.json` in the folder.

    Tables are printed when they are added. `records` are the raw figures behind them, every single step's seconds
    included, for the JSON. A picture is in the Markdown if it is there when that is written.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        settings: Mapping[str, Any],
        hardware: Mapping[str, Any],
        is_quick: bool = False,
    ) -> None:
        self.name = name
        self.folder = folder
        self.settings = dict(settings)
        self.hardware = dict(hardware)
        self.is_quick = is_quick
        self.records: list[dict[str, Any]] = []
        self._parts: list[str | _Picture] = []
        self._tables: list[dict[str, Any]] = []

    def add_table(self, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table, and print it."""
        self._tables.append({"title": title, "heads": list(heads), "rows": [list(row) for row in rows]})
        self._add(f"### {title}\n\n{markdown_table(heads, rows)}")

    def add_note(self, text: str) -> None:
        """Add a sentence or two, and print them."""
        self._add(text)

    def add_picture(self, kind: str, title: str) -> Path:
        """Make the folder and return the path that a picture is to be drawn to; one of an earlier run is removed.

        Where nothing is drawn there, the Markdown does not show it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.name}-{kind}.svg"
        path.unlink(missing_ok=True)
        self._parts.append(_Picture(path, title))
        return path

    @property
    def pictures(self) -> list[Path]:
        """Those that were drawn."""
        return [part.path for part in self._parts if isinstance(part, _Picture) and part.path.exists()]

    def write(self) -> list[Path]:
        """Write the files and return their paths."""
        self.folder.mkdir(parents=True, exist_ok=True)
        quick = " (`--quick`: few steps and small sizes; take figures from the full run)" if self.is_quick else ""
        head = f"## {self.name}{quick}"
        foot = describe_hardware(self.hardware)
        shown = [str(part) for part in self._parts if isinstance(part, str) or part.path in self.pictures]
        markdown, data = self.folder / f"{self.name}.md", self.folder / f"{self.name}.json"
        write_text(markdown, "\n\n".join([head, *shown, foot]) + "\n")
        content = {
            "case": self.name,
            "quick": self.is_quick,
            "settings": self.settings,
            "hardware": self.hardware,
            "tables": self._tables,
            "records": self.records,
        }
        write_text(data, json.dumps(content, indent=2, default=str) + "\n")
        return [markdown, data]

    def _add(self, text: str) -> None:
        self._parts.append(text)
        print(f"\n{text}", flush=True)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of a Markdown table.

    >>> print(markdown_table(["way", "peak"], [["plain", "2 GiB"]]))
    | way | peak |
    |---|---|
    | plain | 2 GiB |
    """
    for row in rows:
        if len(row) != len(heads):
            raise ValueError(f"a row of {len(row)} cells under {len(heads)} heads: {row}")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)])
