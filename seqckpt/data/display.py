"""How a video's decoded pictures are to be shown: turned, which interlaced, in which colours.

A recording of a phone or an endoscopy tower that was held upright is stored as it came from the sensor, lying on its
side, with a display matrix that says by how much players turn it. FFmpeg's decoders hand out the stored picture.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import av
from av.filter import Graph

from seqckpt.errors import DataError

__all__ = ["Display", "Turn", "find_display", "find_turn", "turn_frame"]

_NEAR = 1.0  # degrees: matrices are of rounded numbers; nobody turns by less
_FILTERS = {1: [("transpose", "clock")], 2: [("hflip", ""), ("vflip", "")], 3: [("transpose", "cclock")]}
_HIGH_DYNAMIC_RANGE = {16: "PQ", 18: "HLG"}  # transfer characteristics, by their numbers in ITU-T H.273


class Turn(NamedTuple):
    """By how many degrees (0 to 360, clockwise) a stored picture is turned to be shown; `is_mirrored`: flipped too."""

    degrees: float = 0.0
    is_mirrored: bool = False

    @property
    def is_none(self) -> bool:
        return self == Turn()

    @property
    def quarters(self) -> int:
        """How many quarter turns clockwise that is, 0 to 3. Raises DataError where it is another angle, or mirrored."""
        if self.degrees % 90 or self.is_mirrored:
            shown = f"turned by {self.degrees:g} degrees clockwise{' and mirrored' * self.is_mirrored}"
            raise DataError(
                f"its display matrix says that pictures are shown {shown}; expected 0, 90, 180 or 270 degrees, and not "
                "mirrored: write the video anew with ffmpeg, which turns the pictures themselves"
            )
        return int(self.degrees) // 90


@dataclass(frozen=True)
class Display:
    """How the pictures of a video are shown, as far as the first one tells.

    `dynamic_range` is "PQ" or "HLG" where they are meant for HDR screens.
    """

    turn: Turn = field(default_factory=Turn)
    is_interlaced: bool = False
    dynamic_range: str | None = None


def find_display(frame: av.VideoFrame) -> Display:
    """Return how a decoded frame is to be shown."""
    return Display(find_turn(frame), frame.interlaced_frame, _HIGH_DYNAMIC_RANGE.get(int(frame.color_trc or 0)))


def find_turn(frame: av.VideoFrame) -> Turn:
    """Return how a decoded frame is turned to be shown, by its display matrix.

    The matrix maps (x, y), y downwards, to (a x + c y, b x + d y): a turn by t is a = d = cos t, b = -c = sin t. Scale
    is no matter here: a turn's pixel aspect is the container's to say.
    """
    side_data: Any = frame.side_data  # by any of FFmpeg's names, of which PyAV's types know one
    data = side_data.get("DISPLAYMATRIX")
    if data is None:
        return Turn()
    a, b, _, c, d, *_ = struct.unpack("=9i", bytes(data)[:36])
    across, down = math.hypot(a, c), math.hypot(b, d)
    if not across or not down:
        return Turn()  # all of it is zero: players take it for none
    degrees = math.degrees(math.atan2(b / down, a / across)) % 360
    nearest = 90 * round(degrees / 90)
    return Turn(float(nearest % 360 if abs(degrees - nearest) < _NEAR else round(degrees, 1)), a * d < b * c)


def turn_frame(frame: av.VideoFrame, quarters: int) -> av.VideoFrame:
    """Return a frame turned by quarters (0 to 3, clockwise), by FFmpeg's filters, as its players turn it.

    The stored planes are turned, before anything is resized: swscale treats chroma's rows and columns differently, so
    that the other order gives other pixels at sharp edges of colour. Raises DataError for a quarter turn of a frame
    that is interlaced.
    """
    if not quarters:
        return frame
    if quarters % 2 and frame.interlaced_frame:
        raise DataError(
            "it is interlaced, and its display matrix turns its lines into columns by a quarter turn; expected one or "
            "the other: write the video anew with ffmpeg -vf yadif, which makes whole pictures"
        )
    graph = Graph()
    size = f"{frame.width}x{frame.height}"
    colours = f"colorspace={int(frame.colorspace)}:range={int(frame.color_range)}"
    last = graph.add("buffer", f"video_size={size}:pix_fmt={frame.format.name}:time_base=1/1:{colours}")
    for name, arguments in [*_FILTERS[quarters], ("buffersink", "")]:
        following = graph.add(name, arguments)
        last.link_to(following)
        last = following
    graph.configure()
    graph.vpush(frame)
    turned = graph.vpull()
    assert isinstance(turned, av.VideoFrame)
    return turned
