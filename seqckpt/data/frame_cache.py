"""Decoded frames on disk, so that a recording is decoded once: in later epochs and runs frames come from a memory map.

One file per video (or folder of frames), image size and frame rate:

    magic | length and CRC-32 of the header | header (JSON), padded | frames, uint8 (T, 3, height, width)

The file's name holds a hash of what it was made from: the recording's name, size in bytes, time of last change, a
checksum of pieces of it and how it is turned to be shown, if it is (`recording.identify`), the image size, the frame
rate and the format's version. A changed video thus finds no cache and is decoded again; the same video in a moved
folder finds it still. Damage is noticed by length and CRC when a cache is opened, which costs one read of the file, and
the cache is then made anew; so is one of frames that an earlier version chose otherwise (`moments` in the header says
how they were). Writing is atomic; what a killed process had half written is removed by the next one that asks for any
video of the folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqckpt.atomic import new_file, remove_abandoned
from seqckpt.data.frame_source import FrameSource, span_of
from seqckpt.data.recording import identify, index_recording, number_frames, read_recording
from seqckpt.data.timeline import Timeline, choose_frames, to_fraction
from seqckpt.errors import DataError
from seqckpt.units import format_bytes

__all__ = ["CachedFrames", "SampledVideo", "Stopped", "cache_path", "cache_video"]

_MAGIC = b"SEQCKPT2"
_PREFIX = struct.Struct("<8sII")  # magic, length of the header, CRC-32 of the header
_ALIGNMENT = 4096
_READ_BYTES = 1 << 20
_EXACT = "exact"  # how frames are chosen; caches of before do not say, and rounded moments to the container's unit
_NEAR = 0.05  # frames; by less, no frame that is shown at a moment is told from the next one

_log = logging.getLogger(__name__)


class CachedFrames:
    """The frames of one cached video, a FrameSource: `source[a:b]` is a fresh uint8 tensor (b - a, 3, height, width).

    Each read maps the file, copies the slice and lets go of the map, so that resident memory does not grow with what
    has been read; it is safe in several threads and can be sent to other processes.
    """

    def __init__(self, path: Path, offset: int, shape: tuple[int, int, int, int]) -> None:
        self.path, self.offset, self.shape = path, offset, shape

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"CachedFrames({str(self.path)!r}, shape={self.shape})"

    def __getitem__(self, index: slice) -> Tensor:
        start, stop = span_of(index, len(self))
        frames = torch.empty((stop - start, *self.shape[1:]), dtype=torch.uint8)
        if len(frames):
            try:
                stored = np.memmap(self.path, np.uint8, "r", self.offset, self.shape)
            except (OSError, ValueError) as error:
                raise DataError(f"{self.path}: the frame cache is gone or cut short ({error}); start again") from error
            frames.numpy()[...] = stored[start:stop]
        return frames


@dataclass(frozen=True, eq=False)
class SampledVideo:
    """The frames sampled from a recording: T of them, decoded before or to be decoded when sliced.

    `numbers` int64 (T,) says which of the recording's `num_frames` each of them is, from 0, as annotations count them.
    `repeated` holds the places (in 0 .. T - 1) where the last good frame stands in for a damaged one, as far as known.
    """

    frames: FrameSource
    numbers: NDArray[np.int64]
    num_frames: int
    duration_seconds: float
    repeated: tuple[int, ...] = ()


class Stopped(Exception):
    """Decoding ended early because it was asked to."""


def cache_video(
    path: Path,
    *,
    fps: float,
    image_size: tuple[int, int],
    cache_dir: Path,
    frame_rate: float | None = None,
    corrupt: str = "error",
    stop: threading.Event | None = None,
    count: Callable[[], object] = lambda: None,
) -> SampledVideo:
    """Return a recording's sampled frames from the cache, decoded into it first if they are not there, or damaged.

    `fps` frames a second, resized to `image_size` (height, width); `frame_rate` is that of a folder of images. What
    cannot be decoded is a DataError, or with corrupt="repeat" the last good frame once more. `count` is
    called after each frame that is written. Memory: one frame. Raises DataError where the
    cache cannot be written; what has been cached before stays usable. Raises Stopped, and leaves nothing half-made,
    soon after another thread has set `stop`.
    """
    remove_abandoned(cache_dir, "*.frames")
    place = cache_path(path, fps=fps, image_size=image_size, cache_dir=cache_dir, frame_rate=frame_rate)
    if place.exists():
        try:
            return _open_cache(place, path, corrupt, fps=fps, frame_rate=frame_rate)
        except _Damaged as error:
            _log.warning("the frame cache %s is damaged (%s): made anew", place, error)
    timeline = index_recording(path, frame_rate=frame_rate)
    places = choose_frames(timeline, fps)
    damaged: list[int] | None = [] if corrupt == "repeat" else None
    rows = read_recording(timeline, places, image_size=image_size, damaged=damaged)
    try:
        with new_file(place) as file:
            _write_cache(file, timeline, places, image_size, _watch(rows, stop, count), damaged)
    except OSError as error:
        raise _cannot_write(cache_dir, path, error) from error
    return _open_cache(place, path, corrupt, fps=fps, frame_rate=frame_rate, check_frames=False)


def cache_path(
    path: Path, *, fps: float, image_size: tuple[int, int], cache_dir: Path, frame_rate: float | None = None
) -> Path:
    """Return where the cache of a recording is or would be. Raises DataError where the recording does not exist."""
    source = [*identify(path, frame_rate=frame_rate), str(to_fraction(fps)), *image_size, _MAGIC.decode()]
    key = hashlib.sha256(json.dumps(source).encode()).hexdigest()[:16]
    height, width = image_size
    return cache_dir / f"{path.stem}-{width}x{height}-{fps:g}fps-{key}.frames"


class _Damaged(Exception):
    """A cache file that is not as it was written."""


def _watch(
    rows: Iterator[NDArray[np.uint8]], stop: threading.Event | None, count: Callable[[], object]
) -> Iterator[NDArray[np.uint8]]:
    for row in rows:
        if stop is not None and stop.is_set():
            raise Stopped
        yield row
        count()


def _write_cache(
    file: BinaryIO,
    timeline: Timeline,
    places: NDArray[np.int64],
    image_size: tuple[int, int],
    rows: Iterator[NDArray[np.uint8]],
    damaged: list[int] | None,
) -> None:
    numbers, num_frames = number_frames(timeline, places)
    header: dict[str, Any] = {
        "shape": [len(places), 3, *image_size],
        "crc32": "00000000",
        "num_frames": num_frames,
        "duration_seconds": timeline.duration_seconds,
        "numbers": numbers.tolist(),
        "moments": _EXACT,
        "repeated": "0" * len(places),  # a digit per frame, so that the header's length is known before
    }
    file.write(_pack_header(header))
    crc = 0
    for row in rows:
        data = row.tobytes()
        crc = zlib.crc32(data, crc)
        file.write(data)
    lost = set(damaged or ())
    header |= {"crc32": f"{crc:08x}", "repeated": "".join("01"[k in lost] for k in range(len(places)))}
    file.seek(0)
    file.write(_pack_header(header))


def _pack_header(header: dict[str, Any]) -> bytes:
    text = json.dumps(header).encode()
    packed = _PREFIX.pack(_MAGIC, len(text), zlib.crc32(text)) + text
    return packed.ljust(-(-len(packed) // _ALIGNMENT) * _ALIGNMENT, b"\0")


def _open_cache(
    place: Path, path: Path, corrupt: str, *, fps: float, frame_rate: float | None, check_frames: bool = True
) -> SampledVideo:
    try:
        with open(place, "rb") as file:
            header = _read_header(file)
            shape = tuple(header["shape"])
            offset = len(_pack_header(header))
            if place.stat().st_size != offset + int(np.prod(shape)):
                raise _Damaged("its length is wrong")
            if check_frames and _sum_up(file, offset) != int(header["crc32"], 16):
                raise _Damaged("its frames have changed")
    except OSError as error:
        raise _Damaged(error.strerror or str(error)) from error
    numbers = np.array(header["numbers"], np.int64)
    if header.get("moments") != _EXACT and _is_ahead(header, numbers, fps):
        _check_choice(path, numbers, fps=fps, frame_rate=frame_rate)
    repeated = tuple(k for k, digit in enumerate(header["repeated"]) if digit == "1")
    if repeated and corrupt == "error":
        raise DataError(
            f"{path}: {len(repeated)} of {shape[0]} sampled frames cannot be decoded, the first of them frame "
            f"{repeated[0]}; repair the file, leave it out, or let data.corrupt=repeat put the last good frame there"
        )
    frames = CachedFrames(place, offset, shape)
    return SampledVideo(frames, numbers, header["num_frames"], header["duration_seconds"], repeated)


def _is_ahead(header: dict[str, Any], numbers: NDArray[np.int64], fps: float) -> bool:
    """Say whether frames may have been chosen that begin after their moment, by the average rate."""
    per_sample = header["num_frames"] / header["duration_seconds"] / float(to_fraction(fps))
    return bool((numbers > np.arange(len(numbers)) * per_sample + _NEAR).any())


def _check_choice(path: Path, numbers: NDArray[np.int64], *, fps: float, frame_rate: float | None) -> None:
    """Raise _Damaged where a cache of before holds other frames than are chosen now."""
    timeline = index_recording(path, frame_rate=frame_rate)
    now, _ = number_frames(timeline, choose_frames(timeline, fps))
    if now.tolist() != numbers.tolist():
        raise _Damaged("an earlier version chose frames that are not yet shown at their moments")


def _read_header(file: BinaryIO) -> dict[str, Any]:
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        raise _Damaged("it is cut short")
    magic, length, crc = _PREFIX.unpack(prefix)
    text = file.read(length) if magic == _MAGIC else b""
    if magic != _MAGIC or zlib.crc32(text) != crc:
        raise _Damaged("its header is wrong")
    header: dict[str, Any] = json.loads(text)
    return header


def _sum_up(file: BinaryIO, offset: int) -> int:
    crc = 0
    file.seek(offset)
    while block := file.read(_READ_BYTES):
        crc = zlib.crc32(block, crc)
    return crc


def _cannot_write(cache_dir: Path, path: Path, error: OSError) -> DataError:
    if error.errno == errno.ENOSPC:
        room = "no space left on the device"
        with contextlib.suppress(OSError):
            room += f" ({format_bytes(shutil.disk_usage(cache_dir).free)} free)"
        return DataError(
            f"the frame cache of {path} cannot be written in {cache_dir}: {room}; videos that were finished stay "
            "usable. Make room, sample fewer or smaller frames, or name another folder with cache_dir"
        )
    return DataError(
        f"the frame cache of {path} cannot be written in {cache_dir}: {error.strerror or error}; "
        "name a folder that can be written with cache_dir"
    )
