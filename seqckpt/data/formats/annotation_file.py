"""Annotation files that say themselves, in their first line, how they are to be read; for data sets of one's own.

    frame,phase                         evenly spaced frame numbers from 0, each row until the next
    second,phase                        evenly spaced whole seconds from 0
    phase                               a row per video frame
    start_seconds,end_seconds,phase     intervals; ends are exclusive
    start_ms,end_ms,phase
    start_frame,end_frame,phase
    start_frame,last_frame,phase        intervals; the last frame is inclusive

Columns may be divided by tabs, semicolons or commas, and stand in any order. A phase is a name, or its
id (from 0) where no name is a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seqckpt.data.annotations import Row, find_step, read_table
from seqckpt.data.label_track import Interval, LabelTrack, lay_out_intervals, lay_out_rows
from seqckpt.data.labels import Labels

__all__ = ["read_annotation_file"]

_UNITS: dict[tuple[str, ...], int | None] = {  # header of intervals -> units a second, None: frames
    ("start_seconds", "end_seconds", "phase"): 1,
    ("start_ms", "end_ms", "phase"): 1000,
    ("start_frame", "end_frame", "phase"): None,
    ("start_frame", "last_frame", "phase"): None,
}
_ROWS: tuple[tuple[str, ...], ...] = (("frame", "phase"), ("second", "phase"), ("phase",))


def read_annotation_file(path: Path, labels: Labels) -> LabelTrack:
    """Read an annotation of one of the kinds above. Raises DataError, with file and line, where it is none of them."""
    header, rows = read_table(path)
    kind = next((kind for kind in (*_ROWS, *_UNITS) if sorted(kind) == sorted(header.fields)), None)
    if kind is None:
        kinds = "; ".join(",".join(kind) for kind in (*_ROWS, *_UNITS))
        raise header.error(f"read the columns {','.join(header.fields)}; expected one of: {kinds}")
    places = [header.fields.index(name) for name in kind]
    rows = [row._replace(fields=tuple(row.fields[place] for place in places)) for row in rows]
    if kind in _UNITS:
        intervals = [_read_interval(row, kind, labels) for row in rows]
        return lay_out_intervals(path, intervals, labels=labels, rate=_UNITS[kind])
    values = [labels.find(row.fields[-1], row) for row in rows]
    if kind == ("phase",):
        return lay_out_rows(path, values)
    step = find_step(rows, what=kind[0])
    return lay_out_rows(path, values, step=step, rate=1 if kind[0] == "second" else None)


def _read_interval(row: Row, header: Sequence[str], labels: Labels) -> Interval:
    if header[0] == "start_frame":
        start, end = float(row.whole(0)), float(row.whole(1) + (header[1] == "last_frame"))
        if end < start and header[1] == "last_frame":
            raise row.error(
                f"the interval is from frame {start:.0f} to frame {end - 1:.0f}; expected a last frame that is not "
                "before its first"
            )
    else:
        start, end = row.number(0, f"the {header[0]}"), row.number(1, f"the {header[1]}")
    return Interval(start, end, labels.find(row.fields[2], row), row)
