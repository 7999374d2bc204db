"""Data sets in the layout of Cholec80.

    root/videos/video01.mp4                           any frame rate, also a variable one
    root/phase_annotations/video01-phase.txt          Frame<TAB>Phase, one row per video frame, from 0
    root/tool_annotations/video01-tool.txt            Frame and seven columns of 0 or 1, a row every 25 frames, say

Row k of the phase table belongs to the k-th frame that the video shows, and when that is, the video's time stamps say.
"""

from __future__ import annotations

import logging
import math
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqckpt.data.annotations import SpacedRows, read_phase_table, read_tool_table
from seqckpt.data.frame_cache import SampledVideo
from seqckpt.data.frame_source import Stretch
from seqckpt.data.natural_order import sort_naturally
from seqckpt.data.sampling import sample_videos
from seqckpt.data.timeline import to_fraction
from seqckpt.data.videos import IGNORE_INDEX, Video
from seqckpt.errors import DataError

__all__ = ["PHASES", "TOOLS", "choose_cache_dir", "list_recordings", "list_video_ids", "read_cholec80"]

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

_VIDEOS, _PHASES, _TOOLS = "videos", "phase_annotations", "tool_annotations"
_CACHE = "frame_cache"
_LARGEST_TAIL = 0.02  # of the longer of video and annotation

_log = logging.getLogger(__name__)


def list_video_ids(root: str | Path) -> list[str]:
    """Return the ids of the videos in a data set, in natural order (video2 before video10): their names without .mp4.

    Raises DataError, which shows the expected layout, where the folder or what belongs in it is missing.
    """
    return list(list_recordings(root))


def list_recordings(root: str | Path) -> dict[str, Path]:
    """Map the ids of the videos in a data set to their files, in natural order. Raises DataError as list_video_ids."""
    return _find_videos(_check_layout(Path(root)))


def read_cholec80(
    root: str | Path,
    video_ids: Sequence[str],
    *,
    phase_names: Sequence[str] = PHASES,
    fps: float,
    image_size: int | tuple[int, int],
    cache: str = "memory_map",
    cache_dir: str | Path | None = None,
    tail: str = "trim",
    progress: bool = True,
) -> list[Video]:
    """Read videos with their phases, and tools where there are any, sampled by time.

    Args:
        root: the folder of the data set.
        video_ids: which videos, as list_video_ids names them.
        phase_names: the phases in the order of their ids; no other may occur.
        fps: frames sampled per second.
        image_size: height and width that frames are resized to, in pixels; one number for both.
        cache: "memory_map" keeps decoded frames on disk, "none" decodes them whenever they are read.
        cache_dir: where decoded frames are kept; None: `frame_cache` in the root.
        tail: what if a video and its annotation differ in length: "trim" uses the part that both have (logged as a
            warning above one second, an error above 2 %), "strict" is an error in any case.
        progress: show a progress bar while videos are decoded.

    Annotations are checked first, all of them, before anything is decoded. Videos are decoded in as many threads as
    there are cores, once; later calls open the cache. Memory: a frame per thread, and the labels.
    Raises DataError where anything is missing, damaged or not as the layout says.
    """
    if tail not in ("trim", "strict"):
        raise ValueError(f"tail is {tail!r}; expected 'trim' or 'strict'")
    root = _check_layout(Path(root))
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if min(size) < 1:
        raise ValueError(f"image_size is {image_size}; expected whole numbers from 1")
    to_fraction(fps)
    files = _find_all(root, video_ids)
    phases = {video_id: read_phase_table(files[video_id][1], phase_names) for video_id in video_ids}
    tools = {video_id: read_tool_table(path, TOOLS) for video_id, (_, _, path) in files.items() if path is not None}
    sampled = sample_videos(
        [files[video_id][0] for video_id in video_ids],
        fps=fps,
        image_size=size,
        cache_dir=choose_cache_dir(root, cache, cache_dir),
        progress=progress,
    )
    return [
        _align(video_id, files[video_id], video, phases[video_id], tools.get(video_id), fps=fps, tail=tail)
        for video_id, video in zip(video_ids, sampled, strict=True)
    ]


def _align(
    video_id: str,
    files: tuple[Path, Path, Path | None],
    video: SampledVideo,
    phases: NDArray[np.int64],
    tools: SpacedRows | None,
    *,
    fps: float,
    tail: str,
) -> Video:
    """Give each sampled frame the labels of the video frame that it is."""
    path, phase_path, tool_path = files
    _check_tail(path, video, phase_path, len(phases), tail)
    numbers = video.numbers[video.numbers < len(phases)]
    aligned_tools = None
    if tools is not None and tool_path is not None:
        step = tools.step or video.num_frames
        covered = len(tools.values) * step
        if abs(covered - video.num_frames) >= step:  # the last row may stand for less than a whole step
            _check_tail(path, video, tool_path, covered, tail)
        aligned_tools = _label_tools(numbers, tools.values, step)
    return Video(
        video_id=video_id,
        frames=Stretch(video.frames, 0, len(numbers)),
        seconds=np.arange(len(numbers)) / float(to_fraction(fps)),
        phases=torch.from_numpy(phases[numbers]),
        tools=aligned_tools,
        path=path,
    )


def _label_tools(numbers: NDArray[np.int64], values: NDArray[np.uint8], step: int) -> Tensor:
    """Let each row stand until the next; frames after the last row's step are unlabelled."""
    rows = numbers // step
    labels = np.full((len(numbers), values.shape[1]), IGNORE_INDEX, np.int64)
    inside = rows < len(values)
    labels[inside] = values[rows[inside]]
    return torch.from_numpy(labels)


def _check_tail(path: Path, video: SampledVideo, annotation: Path, num_rows: int, tail: str) -> None:
    """Compare the number of video frames with the number that an annotation covers."""
    difference, longer = abs(video.num_frames - num_rows), max(video.num_frames, num_rows)
    if difference == 0:
        return
    seconds = difference * video.duration_seconds / video.num_frames
    found = f"{path} has {video.num_frames} frames, but {annotation} is for {num_rows}: {difference} ({seconds:.2f} s)"
    if tail == "strict":
        raise DataError(f"{found} too many on one side; expected equal numbers (tail: strict)")
    if difference > max(1, math.floor(_LARGEST_TAIL * longer)):
        raise DataError(
            f"{found} too many on one side, {difference / longer:.1%}; expected at most {_LARGEST_TAIL:.0%}. Is the "
            "annotation another video's, or the file cut short?"
        )
    level = logging.WARNING if seconds > 1 else logging.INFO
    _log.log(level, "%s too many on one side: only what both have is used", found)


def choose_cache_dir(root: Path, cache: str, cache_dir: str | Path | None) -> Path | None:
    """Return the folder that decoded frames are kept in; None where they are not."""
    if cache not in ("memory_map", "none"):
        raise ValueError(f"cache is {cache!r}; expected 'memory_map' or 'none'")
    if cache == "none":
        return None
    return Path(cache_dir) if cache_dir is not None else root / _CACHE


def _find_all(root: Path, video_ids: Sequence[str]) -> dict[str, tuple[Path, Path, Path | None]]:
    """Return the files of each video (video, phases, tools or None); name all that is missing at once."""
    videos = _find_videos(root)
    phases, tools = _list_files(root / _PHASES), _list_files(root / _TOOLS)
    files, missing = {}, []
    for video_id in video_ids:
        phase_path = phases.get(_fold(f"{video_id}-phase.txt"))
        tool_path = tools.get(_fold(f"{video_id}-tool.txt"))
        if video_id not in videos:
            missing.append(root / _VIDEOS / f"{video_id}.mp4")
        if phase_path is None:
            missing.append(root / _PHASES / f"{video_id}-phase.txt")
        if tool_path is None and (root / _TOOLS).is_dir():
            missing.append(root / _TOOLS / f"{video_id}-tool.txt")
        if video_id in videos and phase_path is not None:
            files[video_id] = (videos[video_id], phase_path, tool_path)
    if missing:
        shown = "".join(f"\n  {path}" for path in missing)
        raise DataError(f"{len(missing)} file(s) of the data set are missing:{shown}")
    return files


def _find_videos(root: Path) -> dict[str, Path]:
    videos: dict[str, Path] = {}
    for path in sort_naturally(_list_files(root / _VIDEOS).values(), key=lambda path: path.name):
        if path.suffix.lower() == ".mp4":
            videos[unicodedata.normalize("NFC", path.stem)] = path
    if not videos:
        raise DataError(f"there is no .mp4 file in {root / _VIDEOS}. {_show_layout(root)}")
    return videos


def _list_files(folder: Path) -> Mapping[str, Path]:
    """Map folded names to files, hidden ones (.DS_Store, ._video01.mp4) left out; empty where there is no folder."""
    if not folder.is_dir():
        return {}
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            other = files.setdefault(_fold(path.name), path)
            if other != path:
                raise DataError(f"{other} and {path} have one name, but for its spelling: remove one of them")
    return files


def _fold(name: str) -> str:
    """Return a file name as it is compared: macOS takes accents apart, and suffixes come in either case."""
    stem, dot, suffix = unicodedata.normalize("NFC", name).rpartition(".")
    return f"{stem}{dot}{suffix.lower()}"


def _check_layout(root: Path) -> Path:
    if not root.is_dir():
        kind = "is not a folder" if root.exists() else "does not exist"
        raise DataError(f"the data set {root} {kind}. {_show_layout(root)}")
    missing = [name for name in (_VIDEOS, _PHASES) if not (root / name).is_dir()]
    if missing:
        raise DataError(f"the data set {root} has no folder {' and no folder '.join(missing)}. {_show_layout(root)}")
    return root


def _show_layout(root: Path) -> str:
    return (
        "Expected the layout of Cholec80:\n"
        f"  {root}\n"
        "  ├── videos/             video01.mp4, video02.mp4, ...\n"
        "  ├── phase_annotations/  video01-phase.txt, video02-phase.txt, ...\n"
        "  └── tool_annotations/   video01-tool.txt, video02-tool.txt, ... (the folder may be absent)"
    )
