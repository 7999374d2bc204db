"""Cataract-101: one table of where phases begin, for all videos.

    videos/case_269.mp4 ...     or frames/case_269/*.jpg
    videos.csv                  VideoID;Frames;FPS;Surgeon;Experience
    annotations.csv             VideoID;FrameNo;Phase: from this frame on, the phase of this number (1 to 10)
    phases.csv                  names of the phases; not read, the names are below

Most videos begin with a stretch that has no phase: it is unlabelled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from seqckpt.data.annotations import Row, read_table
from seqckpt.data.data_folder import DataFolder
from seqckpt.data.formats.registry import Annotation, DataSet, Format, VideoEntry
from seqckpt.data.label_track import Interval, LabelTrack, lay_out_intervals
from seqckpt.data.labels import Labels
from seqckpt.errors import DataError

__all__ = ["CATARACT101", "find_cataract101", "lay_out_starts", "read_start_table"]

PHASES = (
    "Incision",
    "ViscousAgentInjection",
    "Rhexis",
    "Hydrodissection",
    "Phacoemulsification",
    "IrrigationAndAspiration",
    "CapsulePolishing",
    "LensImplantSettingUp",
    "ViscousAgentRemoval",
    "TonifyingAndAntibiotics",
)

_VIDEOS, _ANNOTATIONS = "videos.csv", "annotations.csv"
_LAYOUT = """\
  videos/          case_269.mp4, ... (or frames/case_269/*.jpg, ...)
  videos.csv       VideoID;Frames;FPS;Surgeon;Experience
  annotations.csv  VideoID;FrameNo;Phase"""


def find_cataract101(folder: DataFolder) -> DataSet:
    """Find the videos of Cataract-101. Both tables are read here, since each is for all videos."""
    tables = [folder.find_file(name) for name in (_VIDEOS, _ANNOTATIONS)]
    missing = [path.name for path in tables if not path.is_file()]
    if missing:
        raise folder.fail(f"the data set {folder.root} has no {' and no '.join(missing)}")
    videos: dict[str, Row] = {}
    for row in _read_columns(tables[0], ("videoid", "frames", "fps")):
        other = videos.setdefault(row.fields[0], row)
        if other is not row:
            raise row.error(f"the video {row.fields[0]} stands in line {other.line} already; expected one row each")
    starts = read_start_table(tables[1])
    entries = []
    for video_id, path in folder.find_recordings().items():
        number = video_id.removeprefix("case_")
        video = videos.get(number)
        entries.append(
            VideoEntry(
                video_id,
                path,
                files=tables,
                read=lambda i=video_id, n=number: _read(i, videos.get(n), starts.get(n, []), tables, folder.labels),  # type: ignore[misc]
                annotation_fps=_rate(video) if video is not None and path.is_dir() else None,
            )
        )
    return DataSet(entries)


def read_start_table(path: Path) -> dict[str, list[Row]]:
    """Read the table of where phases begin: for each video, its rows of (video, frame, phase).

    Raises DataError where the file is no such table.
    """
    starts: dict[str, list[Row]] = {}
    for row in _read_columns(path, ("videoid", "frameno", "phase")):
        starts.setdefault(row.fields[0], []).append(row)
    return starts


def lay_out_starts(path: Path, rows: Sequence[Row], num_frames: int, labels: Labels) -> LabelTrack:
    """Lay out rows of (video, first frame, phase from 1): each phase lasts until the next begins, the last to the end.

    One that begins where the video ends labels nothing (`empty_lines` of the track). Raises DataError where a frame is
    no number up to `num_frames`, stands twice, or a phase is none of the known.
    """
    numbered = sorted(((row.whole(1), row) for row in rows), key=lambda pair: pair[0])
    intervals = []
    for place, (start, row) in enumerate(numbered):
        if start > num_frames:
            raise row.error(f"a phase begins at frame {start}; the video has {num_frames} frames")
        end, following = numbered[place + 1] if place + 1 < len(numbered) else (num_frames, row)
        if start == end and following is not row:
            raise row.error(f"two phases begin at frame {start}, the other in line {following.line}; expected one")
        intervals.append(Interval(start, end, labels.find_number(row.fields[2], row, first=1), row))
    track = lay_out_intervals(path, intervals, labels=labels, rate=None)
    return dataclasses.replace(track, is_complete=True)  # it ends where the video does


def _read(
    video_id: str, video: Row | None, starts: Sequence[Row], tables: Sequence[Path], labels: Labels
) -> Annotation:
    if video is None:
        raise DataError(f"{tables[0]} has no row for {video_id}; expected its number of frames")
    if not starts:
        raise DataError(f"{tables[1]} has no row for {video_id}; expected the first frame of each of its phases")
    return Annotation(lay_out_starts(tables[1], starts, video.whole(1, "the number of frames"), labels))


def _rate(video: Row) -> float:
    rate = video.number(2, "the frame rate")
    if not 0 < rate <= 1000:
        raise video.error(f"the frame rate is {rate:g}; expected a number above 0, at most 1000")
    return rate


def _read_columns(path: Path, columns: Sequence[str]) -> list[Row]:
    """Read a table, these of its columns only."""
    header, rows = read_table(path)
    places: Mapping[str, int] = {name: place for place, name in enumerate(header.fields)}
    missing = [name for name in columns if name not in places]
    if missing:
        raise header.error(f"read the columns {', '.join(header.fields)}; expected {', '.join(columns)} among them")
    return [Row(row.path, row.line, tuple(row.fields[places[name]] for name in columns)) for row in rows]


CATARACT101 = Format("cataract101", find_cataract101, phase_names=PHASES, layout=_LAYOUT)
