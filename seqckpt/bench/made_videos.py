"""Videos to measure with: a moving pattern, any length, made in a moment."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

__all__ = ["make_long_video", "write_pattern"]


def make_long_video(folder: Path, *, seconds: int) -> Path:
    """Make a video of 854 x 480 pixels and 25 fps: two minutes encoded, and their packets repeated."""
    path, part = folder / f"long-{seconds}.mp4", folder / "part.mp4"
    if path.exists():
        return path
    write_pattern(part, width=854, height=480, num_frames=3000, key_every=250)
    with av.open(str(part)) as source, av.open(str(path), "w") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        assert stream.time_base is not None
        length = int(120 / stream.time_base)
        for repeat in range(seconds // 120):
            source.seek(0)
            for packet in source.demux(stream):
                if packet.size and packet.pts is not None and packet.dts is not None:
                    packet.pts, packet.dts = packet.pts + repeat * length, packet.dts + repeat * length
                    packet.stream = copy
                    target.mux(packet)
    return path


def write_pattern(path: Path, *, width: int, height: int, num_frames: int, key_every: int) -> None:
    """Write bright blobs that wander over a textured ground, with some noise: H.264, 25 fps."""
    rng = np.random.default_rng(0)
    ground = np.kron(rng.integers(40, 160, (height // 8 + 1, width // 8 + 1)), np.ones((8, 8)))[:height, :width]
    noise = rng.integers(-6, 7, (8, height, width))
    options = {"g": str(key_every), "preset": "veryfast"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 25)
        for number in range(num_frames):
            luma = np.roll(ground, number // 2, axis=1) + noise[number % 8]
            for k in range(1, 4):
                y = int((0.5 + 0.4 * np.sin(number / (20 * k))) * (height - 80))
                x = int((0.5 + 0.4 * np.cos(number / (31 * k))) * (width - 80))
                luma[y : y + 80, x : x + 80] = 60 * k
            planes = np.full((height * 3 // 2, width), 128, np.uint8)
            planes[:height] = luma.clip(16, 235)
            frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
