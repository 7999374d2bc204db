"""Video files read by presentation time stamp, through PyAV.

A first pass over the packets, without decoding, lists the time stamps of all frames (a container's own frame count is
not to be trusted); a second one decodes. It seeks to a key frame where one lies between here and the next wanted frame,
and lets the decoder drop unwanted frames that no other frame refers to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from seqckpt.data.display import Display
from seqckpt.data.timeline import Timeline, find_constant_rate
from seqckpt.data.video_container import VIDEO_ERRORS, decode_despite_damage, find_reason
from seqckpt.data.video_container import open_video as _open
from seqckpt.data.video_display import read_display, resize_shown
from seqckpt.errors import DataError

__all__ = ["VideoIndex", "index_video", "read_duration_seconds", "read_frames", "read_shown_size"]


@dataclass(frozen=True)
class VideoIndex(Timeline):
    """The frames of a video file: `key_stamps` are those of the key frames; `height` and `width` are as shown."""

    key_stamps: NDArray[np.int64]
    height: int
    width: int
    display: Display = field(default_factory=Display, kw_only=True)


def index_video(path: Path) -> VideoIndex:
    """List the frames of a video, of which only the first is decoded (a tenth of a second for five minutes of video).

    Raises DataError, with path and reason, where the file is missing, empty, no video, or without a frame, and where
    its pictures are not shown upright or turned by quarters, or are of colours that cannot be converted.
    """
    display = read_display(path)
    with _open(path) as (container, stream):
        try:
            packets: list[tuple[Any, int, bool]] = [
                (packet.pts, packet.duration or 0, packet.is_keyframe)
                for packet in container.demux(stream)
                if packet.size and not packet.is_discard
            ]
        except VIDEO_ERRORS as error:
            raise DataError(
                f"{path} cannot be read to its end: {find_reason(error)}; is it cut short? Copy it again, or leave the "
                "video out"
            ) from error
        if any(stamp is None for stamp, *_ in packets) or len({stamp for stamp, *_ in packets}) < len(packets):
            packets = _decode_stamps(path)
        elif container.format.name == "avi" and stream.codec_context.has_b_frames and packets == sorted(packets):
            # AVI stores no time stamps; these count packets, and B-frames are shown in another order than stored.
            raise DataError(
                f"{path} is an AVI file with B-frames and has no time stamps, so that nothing says when each frame is "
                f"shown; write it anew, for instance with ffmpeg -i {path.name} {path.stem}.mp4"
            )
        if not packets or stream.time_base is None:
            raise DataError(f"{path} holds no frames; expected a video")
        packets.sort()
        stamps = np.array([stamp for stamp, *_ in packets], np.int64)
        last = packets[-1][1] or _usual_distance(stamps, stream)
        keys = np.array([stamp for stamp, _, is_key in packets if is_key], np.int64)
        size = (stream.codec_context.height, stream.codec_context.width)[:: -1 if display.turn.quarters % 2 else 1]
        rates = (stream.base_rate, stream.average_rate, stream.guessed_rate)
        rate = find_constant_rate(stamps, stream.time_base, rates)
        return VideoIndex(
            path, stamps, int(stamps[-1]) + last, stream.time_base, keys, *size, rate=rate, display=display
        )


def read_duration_seconds(path: Path) -> float:
    """Return how long a video lasts as its container claims, in an instant; index_video need not bear it out.

    Raises DataError where the file is no video.
    """
    with _open(path) as (container, stream):
        if stream.duration is not None and stream.time_base is not None:
            return float(stream.duration * stream.time_base)
        if container.duration is not None:
            return container.duration / av.time_base
    return index_video(path).duration_seconds


def read_shown_size(index: VideoIndex) -> tuple[int, int]:
    """Return height and width of a video's pictures as players show them, where pixels need not be square."""
    with _open(index.path) as (_, stream):
        ratio = stream.sample_aspect_ratio or 1  # of the stored picture's width
    if index.display.turn.quarters % 2:
        return max(1, round(index.height * ratio)), index.width
    return index.height, max(1, round(index.width * ratio))


def read_frames(
    index: VideoIndex, numbers: NDArray[np.int64], *, image_size: tuple[int, int], tolerant: bool = False
) -> Iterator[NDArray[np.uint8] | None]:
    """Decode the frames of these numbers (rising, repeats allowed) as RGB, uint8 (3, height, width), one by one.

    Resized by `resize_decoded`. Where a wanted frame cannot be decoded whole, None comes in its place if `tolerant`;
    otherwise raises DataError, with the second at which it is shown.
    """
    wanted = index.stamps[numbers]
    num_read = 0
    try:
        for row in _decode(index, wanted, image_size, skip=True):
            num_read += 1
            yield row
    except _NotDecoded:
        decode_rest = _decode_what_is_whole if tolerant else _decode_all
        yield from decode_rest(index, wanted[num_read:], image_size)


class _NotDecoded(Exception):
    """A wanted frame did not come out of the decoder."""


def _decode_all(index: VideoIndex, wanted: NDArray[np.int64], size: tuple[int, int]) -> Iterator[NDArray[np.uint8]]:
    """Decode from the start and skip nothing: slow, and final in what cannot be decoded."""
    try:
        yield from _decode(index, wanted, size, skip=False)
    except _NotDecoded as error:
        stamp, reason = error.args
        second = index.seconds_at(int(np.searchsorted(index.stamps, stamp)))
        raise DataError(
            f"{index.path} cannot be decoded throughout: the frame shown at {second:.2f} s of "
            f"{index.duration_seconds:.2f} s does not come out whole ({reason}); repair the file, "
            "leave the video out, or let data.corrupt=repeat put the last good frame in its place"
        ) from error


def _decode_what_is_whole(
    index: VideoIndex, wanted: NDArray[np.int64], size: tuple[int, int]
) -> Iterator[NDArray[np.uint8] | None]:
    """Decode from the start, go on after damage from the next key frame, and give None for what was lost."""
    position, is_damaged = 0, False
    reformatter = VideoReformatter()
    with _open(index.path) as (container, stream):
        for frame in decode_despite_damage(container, stream):
            is_damaged = frame is None or frame.is_corrupt or (is_damaged and not frame.key_frame)
            if frame is None or frame.pts is None:
                continue
            while position < len(wanted) and wanted[position] < frame.pts:
                yield None
                position += 1
            if position == len(wanted):
                return
            if wanted[position] == frame.pts:
                row = None if is_damaged else resize_shown(index.path, frame, size, reformatter=reformatter)
                while position < len(wanted) and wanted[position] == frame.pts:
                    yield row
                    position += 1
    yield from (None for _ in wanted[position:])


def _decode(
    index: VideoIndex, wanted: NDArray[np.int64], size: tuple[int, int], *, skip: bool
) -> Iterator[NDArray[np.uint8]]:
    """Yield the frames with the wanted stamps; raise _NotDecoded(stamp, reason) at the first that does not come."""
    position, wanted_set = 0, set(wanted.tolist())
    reformatter = VideoReformatter()
    with _open(index.path) as (container, stream):
        while position < len(wanted):
            target, is_damaged = int(wanted[position]), False
            if skip:
                _seek(container, stream, index, target)
            for frame in _decode_packets(container, stream, wanted_set if skip else None, target):
                is_damaged = frame.is_corrupt or (is_damaged and not frame.key_frame)  # what refers to it is, too
                if frame.pts is None or frame.pts < target:
                    continue
                if frame.pts > target or is_damaged:
                    raise _NotDecoded(target, "it is missing" if frame.pts > target else "it is damaged")
                row = resize_shown(index.path, frame, size, reformatter=reformatter)
                while position < len(wanted) and wanted[position] == frame.pts:
                    position += 1
                    yield row
                if position == len(wanted):
                    return
                target = int(wanted[position])
                if skip and _key_before(index, target) > frame.pts:
                    break  # a key frame lies between: seek
            else:
                raise _NotDecoded(target, "the stream ends before it")


def _decode_packets(
    container: InputContainer, stream: VideoStream, wanted: set[int] | None, target: int
) -> Iterator[av.VideoFrame]:
    """Yield frames in the order shown; with `wanted`, the decoder may drop others that nothing refers to."""
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
            if packet is None:
                return
            if wanted is not None:
                keep = packet.size == 0 or packet.pts in wanted
                stream.codec_context.skip_frame = "DEFAULT" if keep else "NONREF"
            frames = packet.decode()
        except VIDEO_ERRORS as error:
            raise _NotDecoded(target, find_reason(error)) from error
        for frame in frames:
            assert isinstance(frame, av.VideoFrame)
            yield frame


def _seek(container: InputContainer, stream: VideoStream, index: VideoIndex, target: int) -> None:
    key = _key_before(index, target)
    if key > index.stamps[0]:
        try:
            container.seek(key, stream=stream, backward=True)
        except VIDEO_ERRORS as error:
            raise _NotDecoded(target, find_reason(error)) from error


def _key_before(index: VideoIndex, stamp: int) -> int:
    place = int(np.searchsorted(index.key_stamps, stamp, side="right")) - 1
    return int(index.key_stamps[place]) if place >= 0 else int(index.stamps[0])


def _decode_stamps(path: Path) -> list[tuple[Any, int, bool]]:
    """List (stamp, duration, is a key frame) by decoding, for containers whose packets lack time stamps."""
    with _open(path) as (container, stream):
        try:
            frames: list[tuple[Any, int, bool]] = [
                (frame.pts, frame.duration or 0, bool(frame.key_frame)) for frame in container.decode(stream)
            ]
        except VIDEO_ERRORS as error:
            raise DataError(f"{path} cannot be decoded: {find_reason(error)}") from error
    stamps = [stamp for stamp, *_ in frames]
    if None in stamps or len(set(stamps)) < len(stamps):
        raise DataError(f"{path} has frames without a time stamp of their own; write it anew with ffmpeg, for instance")
    return frames


def _usual_distance(stamps: NDArray[np.int64], stream: VideoStream) -> int:
    if len(stamps) > 1:
        return int(np.median(np.diff(stamps)))
    rate = stream.average_rate or stream.guessed_rate
    return max(1, round(1 / (rate * stream.time_base))) if rate and stream.time_base else 1
