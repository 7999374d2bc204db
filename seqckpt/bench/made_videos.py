"""Videos to measure with, of any size and length: a moving pattern over a textured ground."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

__all__ = ["HEIGHT", "WIDTH", "make_long_video", "write_pattern"]

HEIGHT, WIDTH = 480, 854  # of long videos
_FPS, _PART_SECONDS = 25, 120


def write_pattern(path: Path, *, width: int, height: int, num_frames: int, key_every: int) -> None:
    """Write bright blobs that wander over a textured ground, with some noise: H.264, 25 fps."""
    rng = np.random.default_rng(0)
    ground = np.kron(rng.integers(40, 160, (height // 8 + 1, width // 8 + 1)), np.ones((8, 8)))[:height, :width]
    noise = rng.integers(-6, 7, (8, height, width))
    options = {"g": str(key_every), "preset": "veryfast"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=_FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.time_base = Fraction(1, _FPS)
        for number in range(num_frames):
            luma = np.roll(ground, number // 2, axis=1) + noise[number % 8]
            for k in range(1, 4):
                y = int((0.5 + 0.4 * np.sin(number / (20 * k))) * (height - 80))
                x = int((0.5 + 0.4 * np.cos(number / (31 * k))) * (width - 80))
                luma[y : y + 80, x : x + 80] = 60 * k
            planes = np.full((height * 3 // 2, width), 128, np.uint8)
            planes[:height] = luma.clip(16, 235)
            frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, _FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def make_long_video(folder: Path, *, seconds: int) -> Path:
    """Make `long-<seconds>.mp4`, 854 x 480 pixels, 25 fps, a key frame every ten seconds, unless it is there.

    Two minutes of the pattern are encoded, and their packets repeated up to `seconds` or up to two minutes more.
    """
    path, part = folder / f"long-{seconds}.mp4", folder / "part.mp4"
    if path.exists():
        return path
    write_pattern(part, width=WIDTH, height=HEIGHT, num_frames=_PART_SECONDS * _FPS, key_every=10 * _FPS)
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
