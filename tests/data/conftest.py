"""Small real videos and images that spell the number of each frame in it, so that alignment can be tested exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

_BLOCK = 16  # pixels: a macroblock of H.264, black or white, is a bit that no compression can flip
_SIDE = 4 * _BLOCK


def draw_number(number: int) -> NDArray[np.uint8]:
    bits = (number >> np.arange(16)) & 1
    plane = np.kron(bits.reshape(4, 4), np.ones((_BLOCK, _BLOCK))) * 200 + 25
    return np.repeat(plane[..., None], 3, axis=-1).astype(np.uint8)


@pytest.fixture
def read_number() -> Callable[[NDArray[np.uint8]], int]:
    """A function from a picture (3, height, width) of any size to the number that it spells."""

    def read(picture: NDArray[np.uint8]) -> int:
        _, height, width = picture.shape
        blocks = picture.astype(float).reshape(3, 4, height // 4, 4, width // 4).mean((0, 2, 4))
        return int(((blocks.ravel() > 125) << np.arange(16)).sum())

    return read


@pytest.fixture
def write_images() -> Callable[..., Path]:
    """A function that writes a folder of images; the picture of each name spells its number."""

    def write(folder: Path, numbers: Mapping[str, int]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, number in numbers.items():
            Image.fromarray(draw_number(number)).save(folder / name)
        return folder

    return write


@pytest.fixture
def write_text() -> Callable[[Path, str], Path]:
    """A function that writes a text file, and the folders that it is in."""

    def write(path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return path

    return write


@pytest.fixture
def write_film() -> Callable[..., Path]:
    """A function that writes an H.264 video; see below."""
    return _write_film


def _write_film(
    path: Path,
    num_frames: int = 100,
    rate: Fraction | int = 25,
    *,
    stamps: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    first_frame: int = 0,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    """Write frames at a rate, or with time stamps in units of a time base; the k-th spells first_frame + k."""
    path.parent.mkdir(parents=True, exist_ok=True)
    time_base = time_base or 1 / Fraction(rate)
    with av.open(str(path), "w", container_options=container_options or {}) as container:
        encoding = {"g": "25", "preset": "veryfast", "threads": "1", **(options or {})}
        stream = container.add_stream("libx264", rate=Fraction(rate), options=encoding)
        stream.width, stream.height, stream.pix_fmt = _SIDE, _SIDE, "yuv420p"
        stream.codec_context.time_base = time_base
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(draw_number(first_frame + number), format="rgb24")
            frame.pts = number if stamps is None else stamps[number]
            frame.time_base = time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.fixture
def write_folder() -> Callable[[Path, Sequence[str]], Path]:
    """A function that writes images of these names into a folder; the k-th spells k."""

    def write(folder: Path, names: Sequence[str]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(names):
            Image.fromarray(draw_number(number)).save(folder / name)
        return folder

    return write


@pytest.fixture
def damage_stretch() -> Callable[..., None]:
    """A function that overwrites a stretch in the second half of a file with noise."""

    def damage(path: Path, seed: int, num_bytes: int = 200) -> None:
        content, rng = bytearray(path.read_bytes()), np.random.default_rng(seed)
        start = int(rng.integers(len(content) // 2, len(content) - num_bytes - 100))
        content[start : start + num_bytes] = rng.bytes(num_bytes)
        path.write_bytes(content)

    return damage
