"""What a label in a file means: texts and numbers to phase ids, by an explicit list of names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqckpt.data.annotations import Row, quote, read_lines, read_rows
from seqckpt.data.videos import IGNORE_INDEX
from seqckpt.errors import DataError

__all__ = ["Labels", "check_names", "read_mapping", "read_name_list"]


@dataclass(frozen=True)
class Labels:
    """How labels are understood.

    Args:
        names: the phases in the order of their ids; the only source of ids.
        ignored: what a file writes where there is no label ("-1", "background"): becomes IGNORE_INDEX.
        priority: of intervals that overlap, the phase that stands first here wins.
        numbered: the phases that the data set's own numbers count, where these may stand in another order than `names`.
    """

    names: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    priority: tuple[str, ...] = ()
    numbered: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = [name for name in self.priority if name not in self.names]
        if unknown:
            raise DataError(f"overlap_priority names {', '.join(unknown)}; expected some of {', '.join(self.names)}")

    def find_name(self, text: str, row: Row) -> int:
        """Return the id of a phase by its name. Raises DataError, with file and line, where it is unknown."""
        if text in self.ignored:
            return IGNORE_INDEX
        try:
            return self.names.index(text)
        except ValueError:
            close = next(iter(difflib.get_close_matches(text, self.names, 1)), None)
            meant = f"; did you mean {close}?" if close else ""
            raise row.error(f"unknown phase {quote(text)}; expected one of {', '.join(self.names)}{meant}") from None

    def find_number(self, text: str, row: Row, *, first: int) -> int:
        """Return the id of a phase by its number in the file, which counts from `first`; DataError outside of it.

        A number means a phase of the data set's own list, `numbered`; where `names` holds none of these, it only calls
        them differently, in the same order.
        """
        if text in self.ignored:
            return IGNORE_INDEX
        known = self.numbered if set(self.numbered) & set(self.names) else self.names
        last = first + len(known) - 1
        if not (text.isascii() and text.isdigit() and len(text) < 10 and first <= int(text) <= last):
            raise row.error(f"the phase is {quote(text)}; expected a whole number from {first} to {last}")
        name = known[int(text) - first]
        if name not in self.names:
            raise row.error(f"the phase is {text}, {name}; expected one of {', '.join(self.names)}")
        return self.names.index(name)

    def find(self, text: str, row: Row) -> int:
        """Return the id of a phase by its name, or by its id where no name is a number."""
        digits = text.isascii() and text.isdigit() and not any(name.isdigit() for name in self.names)
        return self.find_number(text, row, first=0) if digits else self.find_name(text, row)

    def rank(self, label: int) -> int | None:
        """Return the place of a phase in the priority, 0 for the first; None where it has none."""
        return self.priority.index(self.names[label]) if label >= 0 and self.names[label] in self.priority else None


def read_mapping(path: Path) -> tuple[str, ...]:
    """Read lines of `id name`: the names in the order of their ids.

    Raises DataError where ids are not 0, 1, 2, ... (in any order), or where a name stands twice.
    """
    names: dict[int, str] = {}
    rows = list(read_rows(path, ("id", "name"), has_header=False, free_text=True))
    for row in rows:
        number, name = row.whole(0, "the id"), row.fields[1]
        if number in names:
            raise row.error(f"id {number} stands twice, for {quote(names[number])} and {quote(name)}")
        if name in names.values():
            raise row.error(f"the name {quote(name)} stands twice")
        names[number] = name
    for expected, (number, row) in enumerate(sorted(((int(row.fields[0]), row) for row in rows), key=lambda x: x[0])):
        if number != expected:
            raise row.error(f"id {number} follows {expected - 1}; expected ids 0, 1, 2, ... without a gap")
    return tuple(names[number] for number in range(len(names)))


def read_name_list(path: Path) -> tuple[str, ...]:
    """Read the names of a list file, one a line, lines that begin with # left out; only the file's name of a path."""
    lines = [text for _, text in read_lines(path) if not text.startswith("#")]
    return tuple(text.replace("\\", "/").rpartition("/")[2].removesuffix(".txt") for text in lines)


def check_names(names: Sequence[str], usual: Sequence[str]) -> str | None:
    """Say how a list of names differs from the usual one of a format; None where it does not, or is another set."""
    if list(names) == list(usual) or set(names) != set(usual):
        return None
    place = next(number for number, (name, other) in enumerate(zip(names, usual, strict=True)) if name != other)
    return f"phase {place} is {names[place]}, usually it is {usual[place]}"
