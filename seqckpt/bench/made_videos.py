"""Videos to measure with, of any size: a moving pattern over a textured ground."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

__all__ = ["write_pattern"]


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
