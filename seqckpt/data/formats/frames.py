"""Data sets of one's own as folders of extracted frames.

    frames/video01/*.jpg ...      names hold frame numbers: 1.jpg, 00000001.jpg, img_000001.png, or 0.jpg 25.jpg 50.jpg
    annotations/video01.csv ...   (or .txt, .tsv): see annotation_file.py
    labels.txt                    instead of annotations/: a line per image, `video01/img_000001.png name`

How many frame numbers make a second, data.frame_rate says. Phases: `mapping.txt` (`id name`), or data.phase_names.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from seqckpt.data.annotations import Row, quote, read_lines
from seqckpt.data.data_folder import DataFolder
from seqckpt.data.formats.annotation_file import read_annotation_file
from seqckpt.data.formats.csv import read_own_names
from seqckpt.data.formats.registry import Annotation, DataSet, Format, VideoEntry
from seqckpt.data.frame_folder import index_folder
from seqckpt.data.label_track import Interval, LabelTrack, lay_out_intervals
from seqckpt.data.labels import Labels
from seqckpt.errors import DataError

__all__ = ["FRAMES", "find_frames", "read_image_list"]

_SUFFIXES = (".csv", ".tsv", ".txt")
_LAYOUT = """\
  frames/       video01/*.jpg, video02/*.jpg, ...
  annotations/  video01.csv, video02.csv, ... (or .tsv, .txt; or one labels.txt: `video01/img_000001.jpg name` a line)
  mapping.txt   id and name of each phase, if data.phase_names does not name them"""


def find_frames(folder: DataFolder) -> DataSet:
    """Find the folders of frames in `frames`, and the annotation of each."""
    found = dataclasses.replace(folder, frames_from="frames").find_recordings()
    image_list = folder.find_file("labels.txt")
    listed = read_image_list(image_list) if image_list.is_file() else None
    entries = []
    for video_id, path in found.items():
        if listed is None:
            candidates = [folder.find_file("annotations", f"{video_id}{suffix}") for suffix in _SUFFIXES]
            file = next((candidate for candidate in candidates if candidate.is_file()), candidates[0])
            entry = VideoEntry.from_file(video_id, path, file, read_annotation_file, folder.labels)
        else:
            rows = listed.get(video_id, [])
            entry = VideoEntry(
                video_id,
                path,
                files=[image_list],
                read=lambda p=path, rows=rows: Annotation(  # type: ignore[misc]
                    _label_images(image_list, p, rows, folder.labels), names_images=True
                ),
            )
        entries.append(entry)
    return DataSet(entries)


def read_image_list(path: Path) -> dict[str, list[Row]]:
    """Read lines of `video/image label`, divided at the last blank: for each video, rows of (image, label).

    Raises DataError where a line is not of that kind.
    """
    videos: dict[str, list[Row]] = {}
    for number, line in read_lines(path):
        place, *label = line.rsplit(maxsplit=1)
        video_id, slash, image = place.replace("\\", "/").rpartition("/")
        if not label or not slash or not video_id or not image:
            raise DataError(f"{path}:{number}: read {quote(line)}; expected a line such as video01/img_000001.jpg name")
        video_id = unicodedata.normalize("NFC", video_id.rpartition("/")[2])
        videos.setdefault(video_id, []).append(Row(path, number, (image, label[0])))
    return videos


def _label_images(path: Path, folder: Path, rows: Sequence[Row], labels: Labels) -> LabelTrack:
    """Give each image that is listed its label; the others have none."""
    if not rows:
        raise DataError(f"{path} has no line for an image of {folder}; expected {folder.name}/<image> <label>")
    index = index_folder(folder, frame_rate=1)
    starts = index.stamps - index.stamps[0]
    ends = [*starts[1:].tolist(), int(index.end - index.stamps[0])]
    places = {unicodedata.normalize("NFC", name): place for place, name in enumerate(index.names)}
    intervals: list[Interval] = []
    seen: dict[int, int] = {}
    for row in rows:
        place = places.get(unicodedata.normalize("NFC", row.fields[0]))
        if place is None:
            raise row.error(f"there is no image {row.fields[0]} in {folder}")
        if place in seen:
            raise row.error(f"the image {row.fields[0]} stands in line {seen[place]} already")
        seen[place] = row.line
        intervals.append(Interval(float(starts[place]), float(ends[place]), labels.find(row.fields[1], row), row))
    return lay_out_intervals(path, intervals, labels=labels, rate=None)


FRAMES = Format("frames", find_frames, phase_names=read_own_names, layout=_LAYOUT)
