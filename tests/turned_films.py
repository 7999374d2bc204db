"""Small video files whose display matrix says how they are shown, in patches of colour that tell the corners apart."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

__all__ = ["CORNERS", "UPRIGHT", "find_corners", "patch_matrix", "write_patches"]

# Colours of the corners as stored, clockwise from the top left; and (a, b, c, d) of the matrices of turns by degrees
# clockwise: (x, y) goes to (a x + c y, b x + d y), y downwards. By 90, the top left corner comes to the top right.
CORNERS = {"red": (200, 40, 40), "green": (40, 170, 60), "blue": (50, 60, 200), "grey": (120, 120, 120)}
UPRIGHT = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}


def write_patches(
    path: Path,
    size: tuple[int, int] = (32, 64),
    *,
    num_frames: int = 5,
    quarters: int = 0,
    pixel_format: str = "yuv420p",
    options: dict[str, str] | None = None,
    **context: Any,
) -> Path:
    """Write frames of four patches of this size (height, width); `context` are settings of the encoder's.

    The pixels themselves are turned clockwise by `quarters`.
    """
    height, width = size
    picture = np.zeros((height, width, 3), np.uint8)
    red, green, blue, grey = CORNERS.values()
    picture[: height // 2, : width // 2], picture[: height // 2, width // 2 :] = red, green
    picture[height // 2 :, width // 2 :], picture[height // 2 :, : width // 2] = blue, grey
    picture = np.ascontiguousarray(np.rot90(picture, -quarters))
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=25, options={"qp": "4", "threads": "1", **(options or {})})
        stream.height, stream.width, stream.pix_fmt = *picture.shape[:2], pixel_format
        for name, value in context.items():
            setattr(stream.codec_context, name, value)
        for k in range(num_frames):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = k, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def patch_matrix(path: Path, matrix: tuple[float, float, float, float]) -> Path:
    """Set (a, b, c, d) of the display matrix in an MP4 file's track header: the size of the file stays."""
    content = bytearray(path.read_bytes())
    start = content.index(b"tkhd") + 4 + 40
    a, b, c, d = (round(value * 65536) for value in matrix)
    content[start : start + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(content)
    return path


def find_corners(picture: NDArray[np.uint8]) -> list[str]:
    """Return the names of the colours in the corners of a picture (3, height, width), clockwise from the top left."""
    _, height, width = picture.shape
    y, x = height // 4, width // 4
    places = ((y, x), (y, width - 1 - x), (height - 1 - y, width - 1 - x), (height - 1 - y, x))
    names = list(CORNERS)
    colours = np.array(list(CORNERS.values()))
    return [names[int(np.abs(colours - picture[:, row, column].astype(int)).sum(1).argmin())] for row, column in places]
