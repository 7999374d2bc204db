"""How the pictures of a video file are shown, by its first one; frames resized so, with the file's name in errors."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from seqckpt.data.display import Display, find_display
from seqckpt.data.resizing import resize_decoded
from seqckpt.data.video_container import decode_despite_damage, open_video
from seqckpt.errors import DataError

__all__ = ["read_display", "resize_shown"]

_NUM_TRIES = 100  # frames, until one comes out


def read_display(path: Path, *, check: bool = True) -> Display:
    """Return how a video's pictures are shown, by the first one that can be decoded (of some, or else a plain one).

    Raises DataError where the file is no video, or, with `check`, where its pictures cannot be read so.
    """
    with open_video(path) as (container, stream):
        frames = (frame for frame in islice(decode_despite_damage(container, stream), _NUM_TRIES) if frame is not None)
        first = next(frames, None)
        if first is None:
            return Display()
        if check:
            resize_shown(path, first, (max(1, first.height // 8), max(1, first.width // 8)))
        return find_display(first)


def resize_shown(
    path: Path, frame: av.VideoFrame, size: tuple[int, int], *, reformatter: VideoReformatter | None = None
) -> NDArray[np.uint8]:
    """Resize a frame, and name the file where that cannot be done."""
    try:
        return resize_decoded(frame, size, reformatter=reformatter)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
