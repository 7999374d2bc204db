"""What lies in the folder of a data set: video files, folders of frames, and files by name."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from seqckpt.data.labels import Labels
from seqckpt.data.natural_order import sort_naturally
from seqckpt.errors import DataError

__all__ = ["VIDEO_SUFFIXES", "DataFolder", "fold_name", "list_files"]

VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".ts", ".wmv")

_FRAMES = "frames"


@dataclass(frozen=True)
class DataFolder:
    """The folder of a data set, as a format looks into it.

    Args:
        root: the folder.
        labels: how the labels in it are understood.
        frames_from: "videos", "frames" (folders of extracted frames), or "auto": whichever of the two is there.
        layout: what is expected in it, shown where something is missing.
    """

    root: Path
    labels: Labels
    frames_from: str = "auto"
    layout: str = ""

    def find_recordings(self, *video_folders: str) -> dict[str, Path]:
        """Map ids to video files, or to folders of frames, in natural order (video2 before video10).

        The id of a video file is its name without the suffix; they are looked for in `video_folders` ("": the root;
        default: videos). Folders of frames are `frames/<id>`. Raises DataError where there are none, where an id
        occurs twice, or where both kinds are there and `frames_from` does not choose.
        """
        folders = [self.root / name for name in video_folders or ("videos",)]
        videos = _find_videos(folders) if self.frames_from != "frames" else {}
        frames = _find_folders(self.root / _FRAMES) if self.frames_from != "videos" else {}
        if videos and frames:
            raise DataError(
                f"{self.root} holds video files and folders of frames; say which with data.frames_from=videos or frames"
            )
        if not videos and not frames:
            wanted = {"videos": "no video file", "frames": f"no folder of frames in {self.root / _FRAMES}"}
            where = " or ".join(str(folder) for folder in folders)
            missing = wanted.get(self.frames_from, f"no video file in {where}, and no {self.root / _FRAMES}/<video id>")
            raise self.fail(f"there is {missing}")
        found = videos or frames
        return {video_id: found[video_id] for video_id in sort_naturally(found, key=str)}

    def find_file(self, *names: str) -> Path:
        """Return the file of that name (the last of `names`, in the folder that the others name), however its accents
        and its suffix are spelled; where there is none, where it should be."""
        folder = self.root.joinpath(*names[:-1])
        return list_files(folder).get(fold_name(names[-1]), folder / names[-1])

    def fail(self, found: str) -> DataError:
        """Return a DataError that says what was found and shows the layout that was expected."""
        return DataError(f"{found}. {self.show_layout()}")

    def show_layout(self) -> str:
        """Return the expected layout, in words."""
        return f"Expected in {self.root}:\n{self.layout}"


def list_files(folder: Path) -> Mapping[str, Path]:
    """Map folded names to files, hidden ones (.DS_Store, ._video01.mp4) left out; empty where there is no folder.

    Raises DataError where two names differ only in how they are spelled.
    """
    if not folder.is_dir():
        return {}
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            other = files.setdefault(fold_name(path.name), path)
            if other != path:
                raise DataError(f"{other} and {path} have one name, but for its spelling: remove one of them")
    return files


def fold_name(name: str) -> str:
    """Return a file name as it is compared: macOS takes accents apart, and suffixes come in either case."""
    stem, dot, suffix = unicodedata.normalize("NFC", name).rpartition(".")
    return f"{stem}{dot}{suffix.lower()}"


def _find_videos(folders: list[Path]) -> dict[str, Path]:
    videos: dict[str, Path] = {}
    for folder in folders:
        for path in list_files(folder).values():
            if path.suffix.lower() not in VIDEO_SUFFIXES or path.is_dir():
                continue
            other = videos.setdefault(unicodedata.normalize("NFC", path.stem), path)
            if other != path:
                raise DataError(f"{other} and {path} are both called {path.stem}; expected one video of each name")
    return videos


def _find_folders(folder: Path) -> dict[str, Path]:
    found = {path: unicodedata.normalize("NFC", path.name) for path in list_files(folder).values() if path.is_dir()}
    return {video_id: path for path, video_id in found.items()}
