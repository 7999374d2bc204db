"""Folders of extracted frames: images whose names hold the numbers of the frames.

    frames/video01/1.jpg 2.jpg 3.jpg ...                       or 00000001.jpg, img_000001.png, video26-103.jpg
    frames/video01/0.jpg 25.jpg 50.jpg ...                     every 25th frame of the video, by its own number

The last number in a name is the frame's; all names are alike but for it. Numbers are evenly spaced: a gap or a
duplicate is an error, since all labels behind it would be shifted. What is no image (Thumbs.db, .DS_Store, ._1.jpg) is
ignored.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from seqckpt.data.natural_order import sort_naturally
from seqckpt.data.resizing import resize_picture
from seqckpt.data.timeline import Timeline, to_fraction
from seqckpt.errors import DataError

__all__ = [
    "UPRIGHT",
    "FolderIndex",
    "find_first_number",
    "index_folder",
    "list_images",
    "read_image_size",
    "read_images",
    "read_orientation",
]

UPRIGHT = 1  # EXIF's orientation of an image that is shown as it is stored
_ACROSS = (5, 6, 7, 8)  # those that lie on their side
_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp"}
_ERRORS = (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError)


@dataclass(frozen=True)
class FolderIndex(Timeline):
    """The images of a folder, `names` in the order shown; stamps are the numbers in them."""

    names: tuple[str, ...]


def list_images(folder: Path) -> list[str]:
    """Return the names of the images in a folder, in natural order (2.jpg before 10.jpg), hidden ones left out.

    Raises DataError where there is no such folder, or no image in it.
    """
    try:
        names = [path.name for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES]
    except OSError as error:
        raise DataError(f"{folder} cannot be read as a folder of frames: {error.strerror or error}") from error
    names = [name for name in names if not name.startswith(".")]
    if not names:
        raise DataError(f"{folder} holds no frames; expected images ({', '.join(sorted(_SUFFIXES))}) named by number")
    return sort_naturally(names, key=str)


def find_first_number(folder: Path) -> int:
    """Return the number in the name of a folder's first frame. Raises DataError as index_folder does."""
    return int(index_folder(folder, frame_rate=1).stamps[0])


def index_folder(folder: Path, *, frame_rate: float) -> FolderIndex:
    """Order the images of a folder by number; `frame_rate` is how many numbers make a second.

    That is 1 for frames 1, 2, 3, ... taken once a second, and 25 for frames 0, 25, 50, ... of a video of 25 a second.
    The last image is shown as long as the others. Raises DataError where names hold no number or are of different
    kinds, and where a number is missing or occurs twice.
    """
    rate = to_fraction(frame_rate)
    names = list_images(folder)
    matches = [re.fullmatch(r"(.*?)([0-9]+)([^0-9]*)", name.rpartition(".")[0], re.DOTALL) for name in names]
    kinds: dict[tuple[str, str], str] = {}
    numbered: list[tuple[int, str]] = []
    for name, match in zip(names, matches, strict=True):
        if match is None or len(match[2]) > 15:
            raise DataError(
                f"{folder / name}: expected the number of the frame in the name, as in img_000001{name[-4:]}"
            )
        kinds.setdefault((match[1], match[3]), name)
        numbered.append((int(match[2]), name))
    if len(kinds) > 1:
        one, other, *_ = kinds.values()
        raise DataError(
            f"{folder} holds frames of different kinds, {one} and {other}; expected names that differ by number"
        )
    numbered.sort()
    stamps = np.array([number for number, _ in numbered], np.int64)
    step = _check_spacing(folder, numbered)
    return FolderIndex(folder, stamps, int(stamps[-1]) + step, 1 / Fraction(rate), tuple(name for _, name in numbered))


def read_image_size(index: FolderIndex) -> tuple[int, int]:
    """Return height and width of a folder's first image, as shown. Raises DataError where it cannot be opened."""
    path = index.path / index.names[0]
    try:
        with Image.open(path) as image:
            return (image.width, image.height) if _orientation_of(image) in _ACROSS else (image.height, image.width)
    except _ERRORS as error:
        raise DataError(f"{path} cannot be opened as an image ({error}); extract it anew") from error


def read_orientation(path: Path) -> int:
    """Return by which of EXIF's eight orientations an image is shown; UPRIGHT also where that cannot be found out."""
    try:
        with Image.open(path) as image:
            return _orientation_of(image)
    except _ERRORS:
        return UPRIGHT


def read_images(
    index: FolderIndex, numbers: NDArray[np.int64], *, image_size: tuple[int, int], tolerant: bool = False
) -> Iterator[NDArray[np.uint8] | None]:
    """Decode the images at these places (from 0) as RGB, uint8 (3, height, width), one by one.

    Upright, by EXIF's orientation, and resized by `resize_picture`. Where one cannot be decoded, None comes in its
    place if `tolerant`; otherwise raises DataError with its path.
    """
    last: tuple[int, NDArray[np.uint8] | None] = (-1, None)
    for number in numbers.tolist():
        if number != last[0]:
            last = number, _read_image(index.path / index.names[number], image_size, tolerant=tolerant)
        yield last[1]


def _orientation_of(image: Image.Image) -> int:
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, UPRIGHT)
    except (*_ERRORS, LookupError, TypeError, struct.error):  # the picture may be sound where what is said of it is not
        return UPRIGHT
    return orientation if orientation in range(1, 9) else UPRIGHT


def _read_image(path: Path, size: tuple[int, int], *, tolerant: bool) -> NDArray[np.uint8] | None:
    try:
        with Image.open(path) as image:
            if image.mode[0] in "IF":  # Pillow would cut off all above 255: a white picture
                raise ValueError(f"more than 8 bits a pixel, mode {image.mode}; expected 8 bits a channel")
            is_upright = _orientation_of(image) == UPRIGHT
            picture = (image if is_upright else ImageOps.exif_transpose(image)).convert("RGB")
    except _ERRORS as error:
        if tolerant:
            return None
        reason = "0 bytes" if path.exists() and path.stat().st_size == 0 else str(error)
        raise DataError(
            f"{path} cannot be decoded as an image ({reason}); extract it anew, or let data.corrupt=repeat put the "
            "last good frame in its place"
        ) from error
    return resize_picture(picture, size)


def _check_spacing(folder: Path, numbered: list[tuple[int, str]]) -> int:
    """Return the distance between numbers."""
    pairs = list(pairwise(numbered))
    for (number, name), (following, other) in pairs:
        if number == following:
            raise DataError(f"{folder} holds frame {number} twice, as {name} and {other}; remove one of them")
    step = min((following - number for (number, _), (following, _) in pairs), default=1)
    for (number, name), (following, other) in pairs:
        if following - number != step:
            raise DataError(
                f"{folder}: frame {number + step} is missing: {other} comes after {name}; expected every "
                f"{f'{step}th ' if step > 1 else ''}frame"
            )
    return step
