"""The pictures of the sample: tissue, light, a shaking camera and seven instruments, drawn with numpy.

All that moves or flickers is a stationary random process that knows neither the phase nor the time: what can be learnt
from a frame is what is in view, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from seqckpt.data.formats.cholec80 import TOOLS
from seqckpt.data.sample_script import VIDEO_RATE, Script

__all__ = ["SIDE", "draw_video"]

SIDE = 64  # pixels, height and width
_UNITS = 96  # lengths below are in units of which the picture is this many high and wide
_MARGIN = 8  # pixels that the camera strays
_BLOCK = 20  # frames drawn at once: the arrays stay within the processor's cache

Floats = NDArray[np.float32]
_Mask = Callable[[Floats, Floats, Floats], Floats]


def draw_video(rng: np.random.Generator, script: Script) -> Iterator[NDArray[np.uint8]]:
    """Yield the surgery's frames in blocks, uint8 (n, SIDE, SIDE, 3), RGB."""
    num_frames = len(script.phases)
    canvas = _draw_tissue(rng)
    windows = np.lib.stride_tricks.sliding_window_view(canvas, (SIDE, SIDE), axis=(0, 1))
    tint = rng.normal(1, 0.04, (1, 3, 1, 1)).astype(np.float32)
    camera = np.clip(_MARGIN + 3.5 * _wander(rng, num_frames, 2, seconds=3), 0, 2 * _MARGIN).astype(int)
    light = 1 + 0.12 * _wander(rng, num_frames, 1, seconds=20)[:, 0]
    haze = np.clip(0.18 * _wander(rng, num_frames, 1, seconds=5)[:, 0] - 0.15, 0, 0.5)
    grain = 0.03 * rng.standard_normal((3, 2 * SIDE, 2 * SIDE), np.float32)
    grains = np.lib.stride_tricks.sliding_window_view(grain, (SIDE, SIDE), axis=(1, 2))
    poses = _wander(rng, num_frames, len(TOOLS) * 4, seconds=2.5).reshape(num_frames, len(TOOLS), 4)
    for start in range(0, num_frames, _BLOCK):
        part = slice(start, min(start + _BLOCK, num_frames))
        picture = windows[camera[part, 1], camera[part, 0]] * tint
        for tool in _DRAWING_ORDER:
            (rows,) = np.nonzero(script.tools[part, tool])
            if len(rows):
                closed = script.bag_closed[part][rows]
                picture[rows] = _draw_tool(picture[rows], tool, poses[part][rows, tool], closed)
        picture *= (_VIGNETTE * light[part, None, None])[:, None]
        picture += (haze[part, None, None, None]) * (0.75 - picture)
        corners = rng.integers(0, SIDE + 1, (2, len(picture)))
        picture += grains[:, corners[0], corners[1]].swapaxes(0, 1)  # a lot faster than noise drawn anew
        yield (picture.clip(0, 1) * 255).astype(np.uint8).transpose(0, 2, 3, 1)


def _wander(rng: np.random.Generator, num_frames: int, num_values: int, *, seconds: float) -> Floats:
    """Draw stationary random walks (num_frames, num_values) of deviation 1 that forget within some seconds."""
    keep = np.exp(-1 / (seconds * VIDEO_RATE))
    noise = rng.standard_normal((num_frames, num_values))
    noise[1:] *= np.sqrt(1 - keep**2)
    for frame in range(1, num_frames):
        noise[frame] += keep * noise[frame - 1]
    return noise.astype(np.float32)


def _draw_tissue(rng: np.random.Generator) -> Floats:
    """Draw a surgery's background (S, S, 3): liver, fat, a green gallbladder, vessels and wet spots."""
    side = SIDE + 2 * _MARGIN
    coarse, fine = (_draw_clouds(rng, side, cells)[..., None] for cells in (5, 16))
    colour = np.array([0.48, 0.17, 0.14]) + coarse * [0.22, 0.16, 0.08] + fine * [0.10, 0.07, 0.06]
    y, x = np.mgrid[:side, :side] / side
    centre, slant = rng.uniform(0.35, 0.65, 2), rng.uniform(0, np.pi)
    along = (x - centre[0]) * np.cos(slant) + (y - centre[1]) * np.sin(slant)
    across = (y - centre[1]) * np.cos(slant) - (x - centre[0]) * np.sin(slant)
    inside = np.clip((1 - (along / 0.3) ** 2 - (across / 0.15) ** 2) * 3, 0, 0.8)[..., None]
    colour += inside * ([0.42, 0.46, 0.22] + 0.1 * fine - colour)
    wet = _draw_clouds(rng, side, 30) > 0.86
    return np.clip(colour + 0.35 * wet[..., None], 0, 1).astype(np.float32)


def _draw_clouds(rng: np.random.Generator, side: int, cells: int) -> NDArray[np.float64]:
    """Draw smooth noise (side, side) in -1..1, with about `cells` blobs along each side."""
    place = np.linspace(0, cells, side, endpoint=False)
    low = place.astype(int)
    part = place - low
    part = part * part * (3 - 2 * part)
    grid = rng.uniform(-1, 1, (cells + 1, cells + 1))
    rows = grid[low] * (1 - part[:, None]) + grid[low + 1] * part[:, None]
    return rows[:, low] * (1 - part) + rows[:, low + 1] * part


_GRID_Y, _GRID_X = np.mgrid[:SIDE, :SIDE].astype(np.float32) * np.float32(_UNITS / SIDE)
_VIGNETTE = 1.08 - 1.1 * ((_GRID_X / _UNITS - 0.5) ** 2 + (_GRID_Y / _UNITS - 0.5) ** 2)


def _draw_tool(picture: Floats, tool: int, pose: Floats, closed: NDArray[np.bool_]) -> Floats:
    """Draw one instrument over pictures (n, 3, SIDE, SIDE); `pose` (n, 4): where across, where down, turn, opening."""
    name = TOOLS[tool]
    across, down, turn, opening = (np.clip(pose[:, k, None, None], -2.2, 2.2) for k in range(4))  # stays in view
    if name == "SpecimenBag":
        return _draw_bag(picture, across, down, closed)
    side, shaft_colour, tip_colour, half_width, length, tip = _SHAPES[name]
    angle = np.float32(np.pi) * side + 0.25 * turn  # of the shaft, from the tip to where it enters
    tip_x = _UNITS * (0.5 + 0.12 * across + 0.1 * np.cos(np.float32(np.pi) * side))
    tip_y = _UNITS * (0.5 + 0.12 * down + 0.1 * np.sin(np.float32(np.pi) * side))
    x, y = _GRID_X - tip_x, _GRID_Y - tip_y
    along = x * np.cos(angle) + y * np.sin(angle)
    off = y * np.cos(angle) - x * np.sin(angle)
    shaft = _soften(np.minimum(half_width - np.abs(off), along - length))
    shade = 1 - np.float32(0.45) * np.square(np.clip(off / half_width, -1, 1))
    jaw = _soften(tip(along, off, np.float32(3.5) + np.float32(2.5) * np.tanh(opening)))
    for channel in range(3):
        plane = picture[:, channel]
        plane += shaft * (shaft_colour[channel] * shade - plane)
        plane += jaw * (tip_colour[channel] - plane)
    return picture


def _draw_bag(picture: Floats, across: Floats, down: Floats, closed: NDArray[np.bool_]) -> Floats:
    """Draw the specimen bag: open, wide and see-through; closed, small and full, drawn into a dark trocar."""
    shut = closed[:, None, None]
    x = _GRID_X - _UNITS * (np.where(shut, 0.62, 0.5) + 0.08 * across)
    y = _GRID_Y - _UNITS * (np.where(shut, 0.36, 0.58) + 0.08 * down)
    size_x, size_y = np.where(shut, 13, 30).astype(np.float32), np.where(shut, 16, 19).astype(np.float32)
    reach = np.sqrt((x / size_x) ** 2 + (y / size_y) ** 2)
    inside = _soften((1 - reach) * size_y) * np.where(shut, 0.9, 0.6).astype(np.float32)
    rim = _soften(1.8 - np.abs(1 - reach) * size_y)
    port = _soften(13 - np.hypot(x - 14, y + 20)) * shut
    for channel, (sheet, edge) in enumerate(zip((0.70, 0.76, 0.88), (0.92, 0.95, 1.0), strict=True)):
        plane = picture[:, channel]
        plane += port * (0.04 - plane)
        plane += inside * (sheet - plane)
        plane += rim * (edge - plane)
    return picture


def _soften(distance: Floats) -> Floats:
    """Turn a distance inside an edge into how much of the pixel is covered."""
    return np.clip(distance * np.float32(SIDE / _UNITS) + np.float32(0.5), 0, 1)


def _jaws(length: float, thickness: float) -> _Mask:
    def mask(along: Floats, off: Floats, opening: Floats) -> Floats:
        blade = thickness - np.abs(np.abs(off) - opening * (1 - along / length))
        return np.minimum(blade, np.minimum(along, length - along))

    return mask


def _blades(along: Floats, off: Floats, opening: Floats) -> Floats:
    blade = 1.6 - np.abs(np.abs(off) - opening * np.abs(1 - along / 10))
    return np.minimum(blade, np.minimum(along, 18 - along))


def _hook(along: Floats, off: Floats, opening: Floats) -> Floats:
    rod = np.minimum(1.7 - np.abs(off), np.minimum(along, 14 - along))
    point = np.minimum(1.7 - np.abs(along - 1.7), np.minimum(off + 1.5, 8 - off))
    return np.maximum(rod, point)


def _block(along: Floats, off: Floats, opening: Floats) -> Floats:
    outer = np.minimum(6.5 - np.abs(off), np.minimum(along, 14 - along))
    notch = np.minimum(0.3 * opening - np.abs(off), 10 - along)
    return np.minimum(outer, -notch)


def _nozzle(along: Floats, off: Floats, opening: Floats) -> Floats:
    holes = np.minimum(1.6 - np.abs(off), 1.8 - np.abs(np.mod(along, 7) - 3.5))
    return np.minimum(holes, np.minimum(along, 21 - along))


# Where it comes in (half turns: 0 right, 0.5 bottom, 1 left), colours of shaft and tip, half width, length of tip, tip.
_Colour = tuple[float, float, float]
_SHAPES: dict[str, tuple[float, _Colour, _Colour, float, float, _Mask]] = {
    "Grasper": (1.0, (0.55, 0.56, 0.60), (0.86, 0.86, 0.88), 3.2, 14, _jaws(14, 1.7)),
    "Bipolar": (0.2, (0.16, 0.27, 0.72), (0.72, 0.76, 0.92), 2.8, 18, _jaws(18, 1.4)),
    "Hook": (0.1, (0.10, 0.10, 0.12), (0.95, 0.72, 0.25), 3.0, 14, _hook),
    "Scissors": (0.15, (0.62, 0.60, 0.58), (0.97, 0.93, 0.86), 2.8, 18, _blades),
    "Clipper": (0.0, (0.20, 0.58, 0.34), (0.88, 0.90, 0.80), 4.2, 12, _block),
    "Irrigator": (0.55, (0.62, 0.86, 0.90), (0.10, 0.14, 0.18), 4.4, 0, _nozzle),
}
_DRAWING_ORDER = [TOOLS.index(name) for name in ("SpecimenBag", "Grasper", "Irrigator", "Bipolar", "Hook", "Clipper")]
_DRAWING_ORDER.append(TOOLS.index("Scissors"))
