"""Which recordings a path stands for: a video, a folder of frames, or a folder that holds such."""

from __future__ import annotations

import os
from pathlib import Path

from seqckpt.data.data_folder import VIDEO_SUFFIXES
from seqckpt.data.frame_folder import list_images
from seqckpt.data.natural_order import sort_naturally
from seqckpt.errors import DataError

__all__ = ["find_recordings"]


def find_recordings(path: Path) -> dict[str, Path]:
    """Return the recordings at `path` by name, in natural order; what a folder stands for is decided by what it holds.

    A file is a video, whatever its name. A folder with images is the frames of one video; otherwise its videos, and
    the folders of frames in it, are one each. A recording's name is its file's without suffix (with it, where two
    would have the same). Nothing is opened. Raises DataError where there is no such path, where a folder holds
    neither, and where it holds both images and videos.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; expected a video, a folder of frames, or a folder of videos")
    if not path.is_dir():
        return _name([path])
    videos = [entry for entry in path.iterdir() if _is_video(entry)]
    if _holds_images(path):
        if videos:
            raise DataError(
                f"{path} holds both images ({list_images(path)[0]}) and videos ({videos[0].name}); expected the frames "
                "of one video, or videos: move one kind elsewhere, or name a single file"
            )
        return _name([path])
    folders = [entry for entry in path.iterdir() if _is_folder(entry)]
    found = [*videos, *(folder for folder in folders if _holds_images(folder))]
    if not found:
        raise DataError(f"{path} holds neither videos ({', '.join(VIDEO_SUFFIXES)}) nor frames{_hint(folders)}")
    return _name(sort_naturally(found, key=lambda entry: entry.name))


def _name(paths: list[Path]) -> dict[str, Path]:
    whole = [Path(os.path.abspath(path)) for path in paths]  # also "." has a name
    stems = [path.name if path.is_dir() else path.stem for path in whole]
    return {stem if stems.count(stem) == 1 else path.name: path for stem, path in zip(stems, paths, strict=True)}


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES and not path.name.startswith(".") and path.is_file()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _list(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # not ours to read
        return []


def _holds_images(folder: Path) -> bool:
    try:
        return bool(list_images(folder))
    except DataError:
        return False


def _hint(folders: list[Path]) -> str:
    """Name a folder that was probably meant."""
    meant = [folder for folder in folders if any(_is_video(entry) or _holds_images(entry) for entry in _list(folder))]
    return f"; did you mean {sorted(meant)[0]}?" if meant else "; expected a folder with some of these right in it"
