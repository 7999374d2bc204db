"""Data sets of one's own: a table of videos, `videos.csv`, and an annotation file of each.

    video,annotation,split,fps,id
    clips/a.mp4,labels/a.csv,train,,
    frames/b,labels/b.txt,test,25,case b

Paths are relative to the table. `split`, `fps` and `id` may be left out, as columns or in rows. `split` makes lists
for data.split. `fps` is how many of the annotation's frame numbers make a second, and how many numbers in the names of
extracted frames do; without it, frame numbers are those of the video. The id of a video is, by default, its name
without the suffix. Annotation files say themselves how they are read: see annotation_file.py. Phases: `mapping.txt`
(`id name`) beside the table, or data.phase_names.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from pathlib import Path

from seqckpt.data.annotations import Row, read_table
from seqckpt.data.data_folder import VIDEO_SUFFIXES, DataFolder
from seqckpt.data.formats.annotation_file import read_annotation_file
from seqckpt.data.formats.registry import DataSet, Format, VideoEntry
from seqckpt.data.labels import read_mapping
from seqckpt.errors import DataError

__all__ = ["CSV", "find_csv", "read_own_names"]

_TABLE = "videos.csv"
_REQUIRED, _OPTIONAL = ("video", "annotation"), ("split", "fps", "id")
_LAYOUT = """\
  videos.csv   video,annotation,split,fps,id (the last three may be left out): paths relative to it, one row per video
  mapping.txt  id and name of each phase, if data.phase_names does not name them"""


def find_csv(folder: DataFolder) -> DataSet:
    """Find the videos that `videos.csv` lists; the values in its column `split` are the names of its own lists."""
    table = folder.find_file(_TABLE)
    if not table.is_file():
        raise folder.fail(f"there is no {table}")
    header, rows = read_table(table)
    unknown = [name for name in header.fields if name not in (*_REQUIRED, *_OPTIONAL)]
    if unknown or not set(_REQUIRED) <= set(header.fields) or len(set(header.fields)) != len(header.fields):
        raise header.error(
            f"read the columns {','.join(header.fields)}; expected {','.join(_REQUIRED)}, "
            f"and {','.join(_OPTIONAL)} if wanted"
        )
    entries: dict[str, VideoEntry] = {}
    lists: dict[str, list[str]] = {}
    for row in rows:
        values = dict(zip(header.fields, row.fields, strict=True))
        entry = _read_entry(folder, row, values)
        if entry.video_id in entries:
            raise row.error(f"the video {entry.video_id} stands twice; expected one row each, or an id of its own")
        entries[entry.video_id] = entry
        if values.get("split"):
            lists.setdefault(values["split"], []).append(entry.video_id)
    return DataSet(list(entries.values()), lists)


def _read_entry(folder: DataFolder, row: Row, values: Mapping[str, str]) -> VideoEntry:
    for name in _REQUIRED:
        if not values[name]:
            raise row.error(f"the column {name} is empty; expected a path")
    path, file = (_find(folder, values[name]) for name in _REQUIRED)
    default = path.stem if path.suffix.lower() in VIDEO_SUFFIXES else path.name
    fps = _read_rate(row, values["fps"]) if values.get("fps") else None
    video_id = values.get("id") or unicodedata.normalize("NFC", default)
    try:
        return VideoEntry.from_file(
            video_id, path, file, read_annotation_file, folder.labels, annotation_fps=fps, frame_rate=fps
        )
    except DataError as error:
        raise row.error(str(error)) from error


def _find(folder: DataFolder, text: str) -> Path:
    """Return the path that a cell names, `/` between folders on every system."""
    path = Path(text)
    return path if path.is_absolute() else folder.find_file(*path.parts)


def _read_rate(row: Row, text: str) -> float:
    rate = Row(row.path, row.line, (text,)).number(0, "fps")
    if not 0 < rate <= 1000:
        raise row.error(f"fps is {text}; expected a number above 0, at most 1000")
    return rate


def read_own_names(root: Path) -> tuple[str, ...]:
    """Return the phase names in `mapping.txt`. Raises DataError where there is none."""
    path = root / "mapping.txt"
    if not path.is_file():
        raise DataError(
            f"there is no {path}; expected `id name` of each phase in it, or data.phase_names=[first, second]"
        )
    return read_mapping(path)


CSV = Format("csv", find_csv, phase_names=read_own_names, layout=_LAYOUT)
