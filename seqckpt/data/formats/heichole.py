"""HeiChole: a row per video frame with the number of its phase.

    Videos/Hei-Chole1.mp4 ...                                 the frame rate is the video's own
    Annotations/Phase/Hei-Chole1_Annotation_Phase.csv ...     no header; frame (from 0) and phase (from 0)

Names are compared without regard to upper and lower case.
"""

from __future__ import annotations

from pathlib import Path

from seqckpt.data.annotations import find_step, read_rows
from seqckpt.data.data_folder import DataFolder, list_files
from seqckpt.data.formats.cholec80 import PHASES
from seqckpt.data.formats.registry import DataSet, Format, VideoEntry
from seqckpt.data.label_track import LabelTrack, lay_out_rows
from seqckpt.data.labels import Labels
from seqckpt.errors import DataError

__all__ = ["HEICHOLE", "find_heichole", "read_frame_csv"]


_LAYOUT = """\
  videos/             Hei-Chole1.mp4, Hei-Chole2.mp4, ... (or frames/Hei-Chole1/*.jpg, ...)
  annotations/phase/  Hei-Chole1_Annotation_Phase.csv, ... (or in annotations/, or beside the videos)"""


def find_heichole(folder: DataFolder) -> DataSet:
    """Find the videos of HeiChole."""
    root, *inside = _list_folders(folder.root)
    found = folder.find_recordings("", *(path.name for path in inside if path.name.lower() == "videos"))
    tables: dict[str, Path] = {}
    for place in (root, *inside):
        for path in list_files(place).values():
            other = tables.setdefault(path.name.lower(), path)
            if other != path and path.name.lower().endswith("_phase.csv"):
                raise DataError(f"{other} and {path} have one name; expected one annotation of each video")
    entries = []
    for video_id, path in found.items():
        name = f"{video_id}_Annotation_Phase.csv"
        file = tables.get(name.lower(), folder.root / "annotations" / "phase" / name)
        entries.append(VideoEntry.from_file(video_id, path, file, read_frame_csv, folder.labels))
    return DataSet(entries)


def read_frame_csv(path: Path, labels: Labels) -> LabelTrack:
    """Read rows of `frame,phase` without a header, one per video frame, both counted from 0.

    Raises DataError where the file is no such table, frame numbers are not 0, 1, 2, ..., or a phase is none of them.
    """
    rows = list(read_rows(path, ("frame", "phase"), has_header=False, separator=","))
    find_step(rows, step=1)
    return lay_out_rows(path, [labels.find_number(row.fields[1], row, first=0) for row in rows])


def _list_folders(root: Path) -> list[Path]:
    """Return the root, and the folders that HeiChole has in it, in whatever case."""
    wanted = ("videos", "annotations")
    inside = [path for path in sorted(root.iterdir()) if path.is_dir() and path.name.lower() in wanted]
    deeper = [
        path
        for folder in inside
        if folder.name.lower() == "annotations"
        for path in sorted(folder.iterdir())
        if path.is_dir() and path.name.lower() == "phase"
    ]
    return [root, *inside, *deeper]


HEICHOLE = Format("heichole", find_heichole, phase_names=PHASES, layout=_LAYOUT)
