"""Cholec80: a row per video frame with its phase, a row per second with its tools.

    videos/video01.mp4                        or frames/video01/*.jpg
    phase_annotations/video01-phase.txt       Frame<TAB>Phase, one row per video frame, from 0
    tool_annotations/video01-tool.txt         Frame and seven columns of 0 or 1, a row every 25 frames, say

Row k of the phases belongs to the k-th frame that the video shows, and when that is, its time stamps say.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from seqckpt.data.annotations import find_step, read_rows
from seqckpt.data.data_folder import DataFolder
from seqckpt.data.formats.registry import Annotation, DataSet, Format, VideoEntry
from seqckpt.data.label_track import LabelTrack, lay_out_rows
from seqckpt.data.labels import Labels

__all__ = ["CHOLEC80", "FRAME_RATE", "PHASES", "TOOLS", "find_cholec80", "read_phase_table", "read_tool_table"]

PHASES = (
    "Preparation",
    "CalotTriangleDissection",
    "ClippingCutting",
    "GallbladderDissection",
    "GallbladderPackaging",
    "CleaningCoagulation",
    "GallbladderRetraction",
)
TOOLS = ("Grasper", "Bipolar", "Hook", "Scissors", "Clipper", "Irrigator", "SpecimenBag")
FRAME_RATE = 25.0  # that frame numbers count, whatever the rate of frames extracted since

_PHASES, _TOOLS = "phase_annotations", "tool_annotations"
_LAYOUT = """\
  videos/             video01.mp4, video02.mp4, ... (or frames/video01/*.jpg, ...)
  phase_annotations/  video01-phase.txt, video02-phase.txt, ...
  tool_annotations/   video01-tool.txt, video02-tool.txt, ... (the folder may be absent)"""


def find_cholec80(folder: DataFolder) -> DataSet:
    """Find the videos of a data set in the layout of Cholec80."""
    if not (folder.root / _PHASES).is_dir():
        raise folder.fail(f"the data set {folder.root} has no folder {_PHASES}")
    has_tools = (folder.root / _TOOLS).is_dir()
    entries = []
    for video_id, path in folder.find_recordings().items():
        phases = folder.find_file(_PHASES, f"{video_id}-phase.txt")
        tools = folder.find_file(_TOOLS, f"{video_id}-tool.txt") if has_tools else None
        entries.append(
            VideoEntry(
                video_id,
                path,
                files=[phases] if tools is None else [phases, tools],
                read=lambda phases=phases, tools=tools: _read(phases, tools, folder.labels),  # type: ignore[misc]
                annotation_fps=FRAME_RATE if path.is_dir() else None,
            )
        )
    return DataSet(entries)


def _read(phases: Path, tools: Path | None, labels: Labels) -> Annotation:
    return Annotation(read_phase_table(phases, labels), None if tools is None else read_tool_table(tools, TOOLS))


def read_phase_table(path: Path, labels: Labels) -> LabelTrack:
    """Read `Frame<TAB>Phase` with one row per video frame, from 0.

    Raises DataError where the file is no such table, a name is unknown, or the frame numbers are not 0, 1, 2, ... .
    """
    rows = list(read_rows(path, ("Frame", "Phase"), free_text=True))
    find_step(rows, step=1)
    return lay_out_rows(path, [labels.find_name(row.fields[1], row) for row in rows])


def read_tool_table(path: Path, columns: Sequence[str]) -> LabelTrack:
    """Read `Frame` and one column of 0 or 1 per tool, with rows at evenly spaced video frames, from 0.

    Raises DataError where the file is no such table, a value is neither 0 nor 1, or the frame numbers are not 0, s,
    2 s, ... for some s.
    """
    rows = list(read_rows(path, ("Frame", *columns)))
    step = find_step(rows)
    for row in rows:
        for name, value in zip(columns, row.fields[1:], strict=True):
            if value not in ("0", "1"):
                raise row.error(f"{name} is {value!r}; expected 0 or 1")
    values = np.array([[int(value) for value in row.fields[1:]] for row in rows])
    return lay_out_rows(path, values, step=step)


CHOLEC80 = Format("cholec80", find_cholec80, phase_names=PHASES, layout=_LAYOUT)
