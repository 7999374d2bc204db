"""A video with its phases drawn under it: a ribbon of the whole recording with a mark that moves, and the phase's name.

Pillow draws, FFmpeg's libx264 encodes. matplotlib would take longer for one such picture than decoding and encoding
do, and there are a hundred thousand; what stays the same from frame to frame is drawn once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import matplotlib
import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from seqckpt.atomic import new_file
from seqckpt.plots.results import phase_style
from seqckpt.units import format_seconds

__all__ = ["PhaseBand", "choose_drawn_size", "write_annotated_video"]

_LEAST_WIDTH = 480  # where a name can still be read; smaller pictures are enlarged
_GROUND, _INK = "#222222", "#FFFFFF"


def choose_drawn_size(height: int, width: int) -> tuple[int, int]:
    """Return the height and width in which a video of this size is drawn: its own, even, small ones some times larger.

    >>> choose_drawn_size(1080, 1920), choose_drawn_size(241, 321)
    ((1080, 1920), (482, 642))
    """
    factor = -(-_LEAST_WIDTH // width)
    return tuple(side * factor + side * factor % 2 for side in (height, width))  # type: ignore[return-value]


class PhaseBand:
    """The band under a video's picture: draws one for each frame, and keeps what did not change since the last.

    `seconds` and `phases` (K,) say from when on which phase is predicted, and `end_seconds` when the video ends.
    """

    def __init__(
        self,
        width: int,
        *,
        seconds: ArrayLike,
        phases: ArrayLike,
        end_seconds: float,
        phase_names: Sequence[str],
    ) -> None:
        self._seconds, self._phases = np.asarray(seconds, float), np.asarray(phases, np.int64)
        self._end_seconds = max(end_seconds, 1e-9)
        self._names = phase_names
        self._width = width
        self._unit = max(10, width // 64)  # of all lengths here: half the height of a line
        self._ribbon = self._draw_ribbon()
        self._drawn: tuple[int, int] | None = None
        self._text = self._ribbon  # until the first frame
        font = Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf")  # knows more letters than Pillow's own
        self._font = ImageFont.truetype(str(font), self._unit * 3 // 2)

    @property
    def height(self) -> int:
        return 4 * self._unit  # even, as the encoder needs it

    def draw(self, second: float) -> NDArray[np.uint8]:
        """Return the band at that time, (height, width, 3)."""
        place = max(0, int(np.searchsorted(self._seconds, second, side="right")) - 1)
        shown = int(self._phases[place]), int(second)
        if shown != self._drawn:
            self._drawn, self._text = shown, self._write(*shown)
        band = np.concatenate([self._ribbon, self._text])
        mark = min(self._width - 1, int(second / self._end_seconds * self._width))
        band[: len(self._ribbon), max(0, mark - 2) : mark + 3] = 0
        band[: len(self._ribbon), max(0, mark - 1) : mark + 2] = 255
        return band

    def _draw_ribbon(self) -> NDArray[np.uint8]:
        """Colour each column by the phase at its time; phases that share a colour differ by a pattern."""
        height = self._unit * 3 // 2
        at = (np.arange(self._width) + 0.5) / self._width * self._end_seconds
        columns = self._phases[np.maximum(0, np.searchsorted(self._seconds, at, side="right") - 1)]
        ribbon = np.zeros((height, self._width, 3), np.uint8)
        y, x = np.mgrid[:height, : self._width]
        for phase in np.unique(columns):
            style, here = phase_style(int(phase)), columns == phase
            ribbon[:, here] = ImageColor.getrgb(style["color"])
            ribbon[_pattern(style["hatch"], x, y) & here] = 255
        return ribbon

    def _write(self, phase: int, second: int) -> NDArray[np.uint8]:
        """Write the phase's name beside a patch of its colour, and the time at the right."""
        unit = self._unit
        picture = Image.new("RGB", (self._width, self.height - len(self._ribbon)), _GROUND)
        draw = ImageDraw.Draw(picture)
        middle, end = picture.height / 2, self._width - unit
        color = phase_style(phase)["color"]
        draw.rectangle((unit, middle - 0.6 * unit, 2.2 * unit, middle + 0.6 * unit), fill=color, outline=_INK)
        time = format_seconds(second)
        draw.text((end, middle), time, _INK, self._font, anchor="rm")
        room = end - draw.textlength(time, self._font) - 4 * unit
        name = self._names[phase]
        while len(name) > 1 and draw.textlength(name, self._font) > room:
            name = name[:-2] + "…"
        draw.text((3 * unit, middle), name, _INK, self._font, anchor="lm")
        return np.asarray(picture)


def write_annotated_video(
    frames: Iterable[tuple[int, NDArray[np.uint8]]],
    path: Path,
    *,
    size: tuple[int, int],
    time_base: Fraction,
    rate: Fraction,
    band: PhaseBand,
) -> None:
    """Write frames with their band as H.264 in MP4, whole or not at all.

    `frames` are (stamp, picture (height, width, 3)) of that `size`, each shown at stamp * `time_base` seconds; `rate`
    is about how many there are a second. Memory: the encoder's, some dozens of frames.
    """
    height, width = size
    with new_file(path) as file, av.open(file, "w", format="mp4") as container:
        options: dict[str, str] = {"preset": "veryfast", "crf": "23"}
        stream: Any = container.add_stream("libx264", rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height + band.height, "yuv420p"
        stream.codec_context.time_base = time_base
        for stamp, picture in frames:
            whole = np.concatenate([picture, band.draw(float(stamp * time_base))])
            frame = av.VideoFrame.from_ndarray(whole, format="rgb24")
            frame.pts, frame.time_base = stamp, time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _pattern(hatch: str, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.bool_]:
    """Say which pixels a pattern of matplotlib's, such as "////", leaves white."""
    rising, falling = (x + y) % 8 < 2, (x - y) % 8 < 2
    kinds = {"/": rising, "x": rising | falling, ".": (x % 6 < 2) & (y % 6 < 2)}
    return kinds.get(hatch[:1], np.zeros_like(rising))
