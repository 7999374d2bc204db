"""Small pictures of frames, many to a JPEG sheet, as large and as many as a budget of bytes allows."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seqckpt.data import FrameSource

__all__ = ["Thumbnails", "make_thumbnails"]

_COLUMNS = 16
_PER_SHEET = _COLUMNS * 16
# Longest side in pixels (of no more than the frames have), and JPEG quality; the first that does is taken.
_LEVELS = ((160, 75), (128, 70), (96, 66), (64, 62), (64, 50))
_DENSE_ENOUGH = 3  # a picture for every third frame is worth more than sharper ones for fewer
_BLOCK = 16  # JPEG's, with colours at half resolution: pictures of whole blocks do not run into their neighbours
_IN_A_ROW = 8  # up to that distance reading all frames in between is faster than finding each anew
_WINDOW = 64


@dataclass(frozen=True)
class Thumbnails:
    """Every `every`-th frame of some videos: JPEG files by the video's id, `columns` pictures a row, row by row.

    Each sheet has up to `per_sheet` pictures of `width` x `height` pixels, then the next one begins.
    """

    width: int
    height: int
    every: int
    columns: int
    per_sheet: int
    sheets: Mapping[str, list[bytes]]

    @property
    def num_bytes(self) -> int:
        """The size of all sheets together."""
        return sum(len(sheet) for sheets in self.sheets.values() for sheet in sheets)


def make_thumbnails(
    sources: Mapping[str, FrameSource], *, budget_bytes: int, count: Callable[[], object] = lambda: None
) -> Thumbnails | None:
    """Make pictures of the frames of each video that stay within `budget_bytes` together; None for no frames.

    Frames are uint8 (T, 3, H, W). `count` is called after each video. Memory: a sheet, and 64 frames.
    """
    sources = {video_id: frames for video_id, frames in sources.items() if len(frames)}
    if not sources or budget_bytes <= 0:
        return None
    size, quality, every = _choose(sources, budget_bytes)
    while True:
        sheets = {}
        for video_id, frames in sources.items():
            sheets[video_id] = list(_draw_sheets(frames, size, quality, every))
            count()
        made = Thumbnails(*size, every, _COLUMNS, _PER_SHEET, sheets)
        if made.num_bytes <= budget_bytes:
            return made
        if all(every >= len(frames) for frames in sources.values()):
            return None  # not even one picture a video
        every = math.ceil(every * 1.05 * made.num_bytes / budget_bytes)


def _choose(sources: Mapping[str, FrameSource], budget_bytes: int) -> tuple[tuple[int, int], int, int]:
    """Return size, quality, and distance in frames by what a few pictures take."""
    probes = _probe(sources)
    num_frames = sum(len(frames) for frames in sources.values())
    for longest, quality in _LEVELS:
        size = _fit(probes[0], longest)
        bytes_each = len(_encode([_shrink(picture, size) for picture in probes], size, quality)) / len(probes)
        every = max(1, math.ceil(1.05 * num_frames * bytes_each / budget_bytes))
        if every <= _DENSE_ENOUGH:
            break
    return size, quality, every


def _probe(sources: Mapping[str, FrameSource]) -> list[NDArray[np.uint8]]:
    """Take four frames each from four of the videos."""
    every = max(1, len(sources) // 4)
    chosen = list(sources.values())[::every][:4]
    places = [(frames, (2 * part + 1) * len(frames) // 8) for frames in chosen for part in range(4)]
    return [_turn(frames[place : place + 1].numpy()[0]) for frames, place in places]


def _draw_sheets(frames: FrameSource, size: tuple[int, int], quality: int, every: int) -> Iterator[bytes]:
    pictures: list[Image.Image] = []
    for picture in _pick(frames, every):
        pictures.append(_shrink(picture, size))
        if len(pictures) == _PER_SHEET:
            yield _encode(pictures, size, quality)
            pictures = []
    if pictures:
        yield _encode(pictures, size, quality)


def _pick(frames: FrameSource, every: int) -> Iterator[NDArray[np.uint8]]:
    """Yield every so-manieth frame, (H, W, 3)."""
    span = every * (_WINDOW // every) if every <= _IN_A_ROW else every
    for start in range(0, len(frames), span):
        stop = min(start + span, len(frames)) if every <= _IN_A_ROW else start + 1
        for frame in frames[start:stop].numpy()[::every]:
            yield _turn(frame)


def _turn(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(frame.transpose(1, 2, 0))


def _fit(picture: NDArray[np.uint8], longest: int) -> tuple[int, int]:
    """Return width and height in whole blocks, the longer side at most `longest`."""
    height, width = picture.shape[:2]
    share = min(1.0, longest / max(height, width))
    return max(_BLOCK, _BLOCK * round(width * share / _BLOCK)), max(_BLOCK, _BLOCK * round(height * share / _BLOCK))


def _shrink(picture: NDArray[np.uint8], size: tuple[int, int]) -> Image.Image:
    return Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS)


def _encode(pictures: list[Image.Image], size: tuple[int, int], quality: int) -> bytes:
    width, height = size
    columns = min(_COLUMNS, len(pictures))
    sheet = Image.new("RGB", (columns * width, -(-len(pictures) // columns) * height))
    for number, picture in enumerate(pictures):
        sheet.paste(picture, (number % columns * width, number // columns * height))
    file = io.BytesIO()
    sheet.save(file, "JPEG", quality=quality, optimize=True)
    return file.getvalue()
