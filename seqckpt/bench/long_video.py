"""A video of any length, made in a moment: two minutes encoded, and their packets repeated."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

__all__ = ["HEIGHT", "WIDTH", "make_long_video"]

HEIGHT, WIDTH, _FPS, _PART_SECONDS = 480, 854, 25, 120


def make_long_video(folder: Path, *, seconds: int) -> Path:
    """Make `long-<seconds>.mp4`, 854 x 480 pixels, 25 frames a second, a key frame every ten seconds, once."""
    path, part = folder / f"long-{seconds}.mp4", folder / "part.mp4"
    if path.exists():
        return path
    _write_part(part)
    with av.open(str(part)) as source, av.open(str(path), "w") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        assert stream.time_base is not None
        length = int(_PART_SECONDS / stream.time_base)
        for repeat in range(-(-seconds // _PART_SECONDS)):
            source.seek(0)
            for packet in source.demux(stream):
                if packet.size and packet.pts is not None and packet.dts is not None:
                    packet.pts, packet.dts = packet.pts + repeat * length, packet.dts + repeat * length
                    packet.stream = copy
                    target.mux(packet)
    return path


def _write_part(path: Path) -> None:
    """Write a bright square that wanders over a shaded ground: few bits, so that decoding takes little of the time."""
    ground = np.add.outer(np.arange(HEIGHT) // 8, np.arange(WIDTH) // 16).astype(np.uint8) + 40
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=_FPS, options={"g": str(10 * _FPS), "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(_PART_SECONDS * _FPS):
            planes = np.full((HEIGHT * 3 // 2, WIDTH), 128, np.uint8)
            planes[:HEIGHT] = ground
            y, x = (int((0.5 + 0.4 * wave) * room) for wave, room in _place(number))
            planes[y : y + 80, x : x + 80] = 220
            frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, _FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _place(number: int) -> tuple[tuple[float, int], tuple[float, int]]:
    return (float(np.sin(number / 60)), HEIGHT - 80), (float(np.cos(number / 93)), WIDTH - 80)
