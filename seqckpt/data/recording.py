"""A recording as it lies on disk, a video file or a folder of images: one way to list its frames and to read them."""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqckpt.data.display import Turn
from seqckpt.data.frame_folder import (
    UPRIGHT,
    FolderIndex,
    index_folder,
    list_images,
    read_image_size,
    read_images,
    read_orientation,
)
from seqckpt.data.timeline import Timeline, to_fraction
from seqckpt.data.video_display import read_display
from seqckpt.data.video_file import VideoIndex, index_video, read_duration_seconds, read_frames, read_shown_size
from seqckpt.errors import DataError

__all__ = ["find_shown_size", "guess_num_samples", "identify", "index_recording", "number_frames", "read_recording"]

_PIECE_BYTES = 1 << 16


def index_recording(path: Path, *, frame_rate: float | None = None) -> Timeline:
    """List the frames of a video file or a folder of images without decoding any; the latter needs its `frame_rate`.

    Raises DataError where it is neither, or damaged, or has no frames.
    """
    if not path.is_dir():
        return index_video(path)
    if frame_rate is None:
        raise DataError(
            f"{path} is a folder of frames, and nothing says how many of their numbers make a second; give "
            "data.frame_rate (in videos.csv the column fps): 25 where they count the frames of a video at 25, as in "
            "0.jpg 25.jpg 50.jpg; 1 where they count images that were taken once a second, as in 1.jpg 2.jpg 3.jpg"
        )
    return index_folder(path, frame_rate=frame_rate)


def read_recording(
    timeline: Timeline,
    places: NDArray[np.int64],
    *,
    image_size: tuple[int, int],
    damaged: list[int] | None = None,
    before: Callable[[], NDArray[np.uint8] | None] = lambda: None,
) -> Iterator[NDArray[np.uint8]]:
    """Decode the frames at these places (rising, from 0), RGB, uint8 (3, height, width) each, one by one.

    Without `damaged` a frame that cannot be decoded whole is a DataError that says which. With it, the last good one
    stands in, and the indices (into `places`) of such frames are appended to `damaged`; `before` gives what stands in
    at the start. Raises DataError where there is nothing to stand in.
    """
    last: NDArray[np.uint8] | None = None
    for k, row in enumerate(_read(timeline, places, image_size, damaged is not None)):
        if row is not None:
            last = row
        else:
            assert damaged is not None
            damaged.append(k)
            last = last if last is not None else before()
        if last is None:
            raise DataError(
                f"{timeline.path}: the frame shown at {timeline.seconds_at(int(places[k])):.2f} s cannot be decoded, "
                "and there is none before it to repeat; repair the file, or leave the video out"
            )
        yield last


def find_shown_size(timeline: Timeline) -> tuple[int, int]:
    """Return height and width of a recording's pictures as they are shown, in square pixels."""
    if isinstance(timeline, VideoIndex):
        return read_shown_size(timeline)
    assert isinstance(timeline, FolderIndex)
    return read_image_size(timeline)


def number_frames(timeline: Timeline, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Return the frame numbers at these places, as annotations count them from 0, and how many frames there are in all.

    In a folder that holds every 25th frame of a video, the image at place 2 is frame 50.
    """
    if isinstance(timeline, FolderIndex):
        first = int(timeline.stamps[0])
        return timeline.stamps[places] - first, timeline.end - first
    return places, len(timeline.stamps)


def identify(path: Path, *, frame_rate: float | None = None) -> list[object]:
    """Return what a recording is known by, as plain data: its name, and size and time of last change of all its files.

    What make and rsync go by, and a checksum of pieces of it: hashing all content would read a hundred gigabytes at
    every start. How it is turned to be shown is added where it is: caches of before hold it lying, as it is stored.
    Raises DataError where there is no such recording.
    """
    try:
        if path.is_dir():
            names = list_images(path)
            parts = [(path / name).stat() for name in names]
            some = [path / names[k] for k in sorted({0, len(names) // 2, len(names) - 1})]
            looked_at = [_check_pieces(image) for image in some]
            sizes = [[part.st_size, part.st_mtime_ns] for part in parts]
            turns = [read_orientation(image) for image in some]
            return [path.name, frame_rate, names, sizes, looked_at, *([turns] if {*turns} != {UPRIGHT} else [])]
        status = path.stat()
        known_by = (status.st_size, status.st_mtime_ns, _check_pieces(path))
    except OSError as error:
        raise DataError(f"{path} cannot be opened as a video: {error.strerror or error}") from error
    turn = _find_turn(path, *known_by)
    return [path.name, *known_by, *([] if turn.is_none else [list(turn)])]


@functools.lru_cache(maxsize=4096)
def _find_turn(path: Path, *known_by: int) -> Turn:
    """Return how a video is turned, decoding its first frame once; not at all, where that is not to be found out."""
    try:
        return read_display(path, check=False).turn
    except DataError:
        return Turn()  # whoever reads it is told


def guess_num_samples(path: Path, *, fps: float, frame_rate: float | None = None) -> int:
    """Return about how many frames a sampled recording has, in an instant, by what the video's container claims."""
    seconds = (
        index_recording(path, frame_rate=frame_rate).duration_seconds if path.is_dir() else read_duration_seconds(path)
    )
    return max(1, round(seconds * float(to_fraction(fps))))


def _check_pieces(path: Path) -> int:
    """Return a checksum of the beginning, the middle and the end of a file.

    It tells apart recordings of one name, size and time, such as bitmaps of two folders that one archive brought.
    """
    crc = 0
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        for start in (0, max(0, size - _PIECE_BYTES) // 2, max(0, size - _PIECE_BYTES)):
            file.seek(start)
            crc = zlib.crc32(file.read(_PIECE_BYTES), crc)
    return crc


def _read(
    timeline: Timeline, places: NDArray[np.int64], image_size: tuple[int, int], tolerant: bool
) -> Iterator[NDArray[np.uint8] | None]:
    if isinstance(timeline, VideoIndex):
        return read_frames(timeline, places, image_size=image_size, tolerant=tolerant)
    assert isinstance(timeline, FolderIndex)
    return read_images(timeline, places, image_size=image_size, tolerant=tolerant)
