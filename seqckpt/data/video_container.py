"""Opening video files by PyAV: what goes wrong is a DataError with path and reason."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import av
from av.container import InputContainer
from av.video.stream import VideoStream

from seqckpt.errors import DataError

__all__ = ["VIDEO_ERRORS", "decode_despite_damage", "find_reason", "open_video"]

VIDEO_ERRORS = (
    av.FFmpegError,
    OSError,
    ValueError,
    EOFError,
)  # what PyAV raises for a file that is not as it should be


@contextlib.contextmanager
def open_video(path: Path) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a container and its first video stream; what goes wrong is a DataError with the path."""
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty (0 bytes); expected a video")
        container = av.open(str(path))
    except DataError:
        raise
    except VIDEO_ERRORS as error:
        is_there = isinstance(error, av.InvalidDataError | EOFError)
        hint = "; is it cut short? Copy it again, or leave the video out" if is_there else ""
        raise DataError(f"{path} cannot be opened as a video: {find_reason(error)}{hint}") from error
    with container:
        if not container.streams.video:
            raise DataError(f"{path} holds no video stream; expected a video")
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1  # videos are decoded side by side; one alone gained nothing by two
        yield container, stream


def decode_despite_damage(container: InputContainer, stream: VideoStream) -> Iterator[av.VideoFrame | None]:
    """Yield all frames that come out, in the order shown, and None where a packet gives an error instead."""
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
        except VIDEO_ERRORS:
            return  # the container itself is broken from here on
        if packet is None:
            return
        try:
            frames = packet.decode()
        except VIDEO_ERRORS:
            yield None
            continue
        for frame in frames:
            assert isinstance(frame, av.VideoFrame)
            yield frame


def find_reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
