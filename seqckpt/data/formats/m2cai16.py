"""M2CAI16-workflow: as Cholec80, with a phase before the others, and everything in one folder.

    workflow_video_01.mp4 ... 27, test_workflow_video_01.mp4 ... 14
    workflow_video_01.txt ...

Videos and annotations are looked for in the root, and in the folders that the set is packed in.
"""

from __future__ import annotations

from seqckpt.data.data_folder import DataFolder
from seqckpt.data.formats.cholec80 import FRAME_RATE, read_phase_table
from seqckpt.data.formats.cholec80 import PHASES as CHOLEC80_PHASES
from seqckpt.data.formats.registry import DataSet, Format, VideoEntry

__all__ = ["M2CAI16", "find_m2cai16"]

PHASES = ("TrocarPlacement", *CHOLEC80_PHASES)

_FOLDERS = ("", "videos", "train_dataset", "test_dataset")
_LAYOUT = """\
  workflow_video_01.mp4, ..., test_workflow_video_01.mp4, ... (also in videos/, train_dataset/ or test_dataset/;
                            or frames/workflow_video_01/*.jpg, ...)
  workflow_video_01.txt, ...  beside them"""


def find_m2cai16(folder: DataFolder) -> DataSet:
    """Find the videos of M2CAI16-workflow; its own lists are `train` and `test`."""
    entries = []
    for video_id, path in folder.find_recordings(*_FOLDERS).items():
        candidates = [folder.find_file(*([name] if name else []), f"{video_id}.txt") for name in _FOLDERS]
        default = candidates[0] if path.is_dir() else path.with_suffix(".txt")
        file = next((candidate for candidate in candidates if candidate.is_file()), default)
        entries.append(
            VideoEntry.from_file(
                video_id,
                path,
                file,
                read_phase_table,
                folder.labels,
                annotation_fps=FRAME_RATE if path.is_dir() else None,
            )
        )
    ids = [entry.video_id for entry in entries]
    test = [video_id for video_id in ids if video_id.startswith("test_")]
    return DataSet(entries, {"train": [video_id for video_id in ids if video_id not in test], "test": test})


M2CAI16 = Format("m2cai16", find_m2cai16, phase_names=PHASES, layout=_LAYOUT)
