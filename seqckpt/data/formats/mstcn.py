"""The layout that came with MS-TCN, for 50Salads, Breakfast and GTEA: a label a line, one line per video frame.

    videos/rgb-01-1.avi ...            or frames/rgb-01-1/*.jpg
    groundTruth/rgb-01-1.txt ...       one label per line, no frame numbers
    mapping.txt                        `id name`, from 0
    splits/train.split1.bundle ...     names of files in groundTruth: lists, for data.split

Precomputed `features/*.npy` are not read: the encoder is trained here, so that it needs the frames.
"""

from __future__ import annotations

from pathlib import Path

from seqckpt.data.annotations import read_rows
from seqckpt.data.data_folder import DataFolder, list_files
from seqckpt.data.formats.registry import DataSet, Format, VideoEntry
from seqckpt.data.label_track import LabelTrack, lay_out_rows
from seqckpt.data.labels import Labels, read_mapping, read_name_list
from seqckpt.errors import DataError

__all__ = ["MSTCN", "find_mstcn", "read_label_lines"]

_LAYOUT = """\
  videos/       rgb-01-1.avi, ... (or frames/rgb-01-1/*.jpg, ...)
  groundTruth/  rgb-01-1.txt, ...
  mapping.txt
  splits/       train.split1.bundle, test.split1.bundle, ..."""


def find_mstcn(folder: DataFolder) -> DataSet:
    """Find the videos of a data set in the layout of MS-TCN; its own lists are the files in `splits`, by name."""
    try:
        found = folder.find_recordings()
    except DataError as error:
        if any(path.suffix == ".npy" for path in list_files(folder.root / "features").values()):
            raise DataError(
                f"{folder.root} holds features that some encoder has made (features/*.npy), but no frames. They are "
                "not read: here the encoder is trained together with what comes after it. Put the videos into "
                "videos/, or their frames into frames/<video>/"
            ) from error
        raise
    entries = []
    for video_id, path in found.items():
        file = folder.find_file("groundTruth", f"{video_id}.txt")
        entries.append(VideoEntry.from_file(video_id, path, file, read_label_lines, folder.labels))
    lists = {path.name: read_name_list(path) for path in list_files(folder.root / "splits").values() if path.is_file()}
    return DataSet(entries, {name: ids for name, ids in lists.items() if name.endswith(".bundle")})


def read_label_lines(path: Path, labels: Labels) -> LabelTrack:
    """Read one label per line, a line per video frame; the last one need not end in a newline.

    Raises DataError where the file is empty, or a label is unknown.
    """
    rows = read_rows(path, ("label",), has_header=False, free_text=True)
    return lay_out_rows(path, [labels.find_name(row.fields[0], row) for row in rows])


def _read_names(root: Path) -> tuple[str, ...]:
    return read_mapping(root / "mapping.txt")


MSTCN = Format("mstcn", find_mstcn, phase_names=_read_names, layout=_LAYOUT)
