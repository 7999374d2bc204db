"""AutoLaparo: a row per second with the number of its phase.

    videos/01.mp4 ... 21.mp4          or frames/01/*.jpg
    labels/label_01.txt ...           a header, then second (from 1) and phase (from 1), divided by a tab

Row k is for the k-th second of the video, whatever its frame rate.
"""

from __future__ import annotations

import re
from pathlib import Path

from seqckpt.data.annotations import find_step, read_rows
from seqckpt.data.data_folder import DataFolder
from seqckpt.data.formats.registry import DataSet, Format, VideoEntry
from seqckpt.data.label_track import LabelTrack, lay_out_rows
from seqckpt.data.labels import Labels
from seqckpt.errors import DataError

__all__ = ["AUTOLAPARO", "find_autolaparo", "read_label_table"]

PHASES = (
    "Preparation",
    "DividingLigamentAndPeritoneum",
    "DividingUterineVesselsAndLigament",
    "TransectingTheVagina",
    "SpecimenRemoval",
    "Suturing",
    "Washing",
)

_LAYOUT = """\
  videos/  01.mp4, 02.mp4, ..., 21.mp4 (or frames/01/*.jpg, ...)
  labels/  label_01.txt, label_02.txt, ..."""
_SPLIT = {"train": range(1, 11), "val": range(11, 15), "test": range(15, 22)}


def find_autolaparo(folder: DataFolder) -> DataSet:
    """Find the videos of AutoLaparo; its own lists are `train` (1-10), `val` (11-14) and `test` (15-21)."""
    entries, numbers = [], {}
    for video_id, path in folder.find_recordings().items():
        ending = re.search(r"[0-9]{1,6}$", video_id)
        if ending is None:
            raise folder.fail(f"{path} has no number at the end of its name")
        numbers[video_id] = int(ending[0])
        file = folder.find_file("labels", f"label_{int(ending[0]):02d}.txt")
        entries.append(VideoEntry.from_file(video_id, path, file, read_label_table, folder.labels))
    return DataSet(entries, {name: [i for i, n in numbers.items() if n in part] for name, part in _SPLIT.items()})


def read_label_table(path: Path, labels: Labels) -> LabelTrack:
    """Read a header and rows of second and phase, both numbered from 1: row k is for the time from k - 1 to k s.

    Raises DataError where the file is no such table, or numbers are not 1, 2, 3, ..., or a phase is none of them.
    """
    _, *rows = read_rows(path, ("Frame", "Phase"), has_header=False)
    if not rows:
        raise DataError(f"{path} has a header and no rows below it; expected one row or more of frame and phase")
    find_step(rows, first=1, step=1)
    return lay_out_rows(path, [labels.find_number(row.fields[1], row, first=1) for row in rows], rate=1)


AUTOLAPARO = Format("autolaparo", find_autolaparo, phase_names=PHASES, layout=_LAYOUT)
