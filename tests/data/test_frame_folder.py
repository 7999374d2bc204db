"""Folders of images: every frame in its place by the number in its name, and nothing guessed where one is missing."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from PIL import Image

from seqckpt.data.frame_folder import index_folder, list_images, read_images
from seqckpt.data.recording import index_recording, number_frames
from seqckpt.data.timeline import choose_frames
from seqckpt.errors import DataError


@pytest.fixture
def read_folder(read_number: Callable[..., int]) -> Callable[..., list[int]]:
    """A function from a folder, its frame rate and fps to the numbers that the sampled pictures spell."""

    def read(folder: Path, frame_rate: float, fps: float, image_size: tuple[int, int] = (64, 64)) -> list[int]:
        index = index_folder(folder, frame_rate=frame_rate)
        rows = read_images(index, choose_frames(index, fps), image_size=image_size)
        return [read_number(row) for row in rows]  # type: ignore[arg-type]

    return read


NAMES = {
    "plain": [f"{k}.jpg" for k in range(1, 13)],
    "img_1": [f"img_{k}.jpg" for k in range(1, 13)],
    "zeros in front": [f"{k:08d}.png" for k in range(12)],
    "zeros that run out": [f"frame_{k:04d}.JPG" for k in range(9995, 10007)],
    "the last of two numbers": [f"video26-{k}.jpeg" for k in range(100, 112)],
    "words behind": [f"Vidéo 1 {k} left.png" for k in range(12)],
}


@pytest.mark.parametrize("kind", NAMES)
def test_frames_come_by_number(kind: str, tmp_path: Path, write_folder: Callable, read_folder: Callable) -> None:
    """Case 80: as text, img_10 would come before img_2, and frame_10000 before frame_9998."""
    folder = write_folder(tmp_path / "frames", NAMES[kind])
    assert read_folder(folder, 25, 25) == list(range(12))
    assert read_folder(folder, 2, 1) == list(range(0, 12, 2))
    assert list(index_folder(folder, frame_rate=1).names) == NAMES[kind]


def test_what_is_no_image_is_ignored(tmp_path: Path, write_folder: Callable, read_folder: Callable) -> None:
    folder = write_folder(tmp_path / "frames", NAMES["img_1"])
    for name in ("Thumbs.db", ".DS_Store", "._img_1.jpg", ".img_99.jpg", "notes 7.txt"):
        (folder / name).write_bytes(b"\0\1\2")
    assert read_folder(folder, 25, 25) == list(range(12))


def test_every_25th_frame_of_a_video_by_its_own_number(
    tmp_path: Path, write_folder: Callable, read_folder: Callable
) -> None:
    folder = write_folder(tmp_path / "frames", [f"{k}.jpg" for k in range(0, 250, 25)])
    assert read_folder(folder, 25, 1) == list(range(10))
    assert read_folder(folder, 25, 2) == [k // 2 for k in range(20)]
    index = index_recording(folder, frame_rate=25)
    assert (index.duration_seconds, index.time_base) == (10.0, Fraction(1, 25))
    numbers, num_frames = number_frames(index, choose_frames(index, 0.5))
    assert (numbers.tolist(), num_frames) == ([0, 50, 100, 150, 200], 250)


@given(step=st.integers(1, 40), first=st.integers(0, 99), count=st.integers(1, 30))
def test_numbering_from_anywhere_in_any_step(
    step: int, first: int, count: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("frames")
    for k in range(count):
        (folder / f"{first + k * step}.png").touch()
    index = index_folder(folder, frame_rate=10)
    numbers, num_frames = number_frames(index, np.arange(count))
    assert numbers.tolist() == [k * (step if count > 1 else 1) for k in range(count)]
    assert num_frames == count * (step if count > 1 else 1)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["1.jpg", "2.jpg", "4.jpg"], r"frame 3 is missing: 4\.jpg comes after 2\.jpg; expected every frame"),
        (["0.jpg", "25.jpg", "50.jpg", "100.jpg"], r"frame 75 is missing: 100\.jpg .* expected every 25th frame"),
        (["1.jpg", "2.jpg", "02.jpg"], r"holds frame 2 twice, as 02\.jpg and 2\.jpg; remove one"),
        (["1.jpg", "1.png"], r"holds frame 1 twice, as 1\.jpg and 1\.png"),
        (["a_1.jpg", "b_2.jpg"], r"different kinds, a_1\.jpg and b_2\.jpg"),
        (["1.jpg", "cover.jpg"], r"cover\.jpg: expected the number of the frame in the name"),
        (["notes.txt"], r"holds no frames; expected images"),
        ([], r"holds no frames; expected images"),
    ],
)
def test_what_is_wrong_with_the_names_is_said(names: list[str], message: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=message) as caught:
        index_folder(tmp_path, frame_rate=1)
    assert str(tmp_path) in str(caught.value)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("absent", "file"):
        with pytest.raises(DataError, match=f"{name} cannot be read as a folder of frames"):
            list_images(tmp_path / name)


def test_a_folder_needs_a_rate(tmp_path: Path, write_folder: Callable) -> None:
    folder = write_folder(tmp_path / "frames", ["1.jpg"])
    with pytest.raises(DataError, match="and nothing says how many of their numbers make a second"):
        index_recording(folder)
    with pytest.raises(DataError, match="fps is 0"):
        index_recording(folder, frame_rate=0)


@pytest.mark.parametrize("name", ["Vidéos été/Операция 1/胆嚢 01", "with blank/case.v2.01", "a%20b#?"])
def test_names_of_every_kind(name: str, tmp_path: Path, write_folder: Callable, read_folder: Callable) -> None:
    assert read_folder(write_folder(tmp_path / name, NAMES["words behind"]), 1, 1) == list(range(12))


@pytest.mark.parametrize("image_size", [(64, 64), (16, 16), (8, 32), (128, 96)])
def test_frames_are_resized(
    image_size: tuple[int, int], tmp_path: Path, write_folder: Callable, read_number: Callable
) -> None:
    index = index_folder(write_folder(tmp_path / "frames", NAMES["plain"]), frame_rate=1)
    rows = list(read_images(index, np.array([3, 3, 7]), image_size=image_size))
    assert [(row.shape, row.dtype) for row in rows if row is not None] == [((3, *image_size), np.dtype(np.uint8))] * 3
    assert [read_number(row) for row in rows] == [3, 3, 7]


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "CMYK"])
def test_pictures_of_every_mode_become_rgb(mode: str, tmp_path: Path) -> None:
    picture = Image.new("RGB", (8, 8), (200, 100, 30))
    picture.convert(mode).save(tmp_path / ("1.jpg" if mode == "CMYK" else "1.png"))
    (row,) = read_images(index_folder(tmp_path, frame_rate=1), np.array([0]), image_size=(8, 8))
    assert row is not None
    expected = [124] * 3 if mode == "L" else [200, 100, 30]  # CMYK and a palette are near it
    assert np.abs(row.mean((1, 2)) - expected).max() < 12


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "text": lambda content: b"no image" * 100,
    "cut short": lambda content: content[: len(content) // 2],
}


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_image_is_named(damage: str, suffix: str, tmp_path: Path, write_folder: Callable) -> None:
    folder = write_folder(tmp_path / "frames", [f"{k}.{suffix}" for k in range(4)])
    path = folder / f"2.{suffix}"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    index = index_folder(folder, frame_rate=1)
    with pytest.raises(DataError, match=rf"2\.{suffix} cannot be decoded as an image"):
        list(read_images(index, np.arange(4), image_size=(16, 16)))
    rows = list(read_images(index, np.arange(4), image_size=(16, 16), tolerant=True))
    assert [row is None for row in rows] == [False, False, True, False]


def test_more_than_8_bits_are_refused(tmp_path: Path) -> None:
    """Pillow would make a white picture of it."""
    Image.fromarray(np.full((8, 8), 300, np.uint16)).save(tmp_path / "1.png")
    with pytest.raises(DataError, match=r"1\.png cannot be decoded .*expected 8 bits a channel"):
        next(read_images(index_folder(tmp_path, frame_rate=1), np.array([0]), image_size=(8, 8)))
