"""Colours of a video as its file states them: matrix, range, depth and fields; or an error, or a word of the doctor's.

Against the formulas of ITU-R BT.601, BT.709 and BT.2020, within 3 of 255 levels: FFmpeg's fast way for formats of
coarser chroma is up to 2.5 off. A wrong range or matrix makes more than twice as much, in the worst of these colours.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from turned_films import UPRIGHT, patch_matrix

from seqckpt.data import Labels, examine, find_format
from seqckpt.data.video_file import index_video, read_frames
from seqckpt.errors import DataError

Writer = Callable[..., Path]
WEIGHTS = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}  # of red and blue in luma
# What x264 calls a matrix, and whose weights it has; without a word of the file, FFmpeg takes it for BT.601.
MATRICES = {
    "undef": "bt601",
    "smpte170m": "bt601",
    "bt470bg": "bt601",
    "bt709": "bt709",
    "bt2020nc": "bt2020",
}
LEVELS = 3
COLOURS = [(81, 90, 240), (145, 54, 34), (41, 200, 110), (180, 128, 128), (120, 100, 160)]  # 8 bits, none out of range


def to_rgb(colour: tuple[int, int, int], matrix: str, *, is_full: bool) -> NDArray[np.float64]:
    """By hand: 8-bit Y, Cb, Cr to R, G, B of 0 to 255."""
    red, blue = WEIGHTS[matrix]
    luma, chroma_blue, chroma_red = colour
    y = luma / 255 if is_full else (luma - 16) / 219
    across = 255 if is_full else 224
    cb, cr = (chroma_blue - 128) / across, (chroma_red - 128) / across
    r, b = y + 2 * (1 - red) * cr, y + 2 * (1 - blue) * cb
    g = (y - red * r - blue * b) / (1 - red - blue)
    return np.clip(np.array([r, g, b]) * 255, 0, 255)


def write_planes(path: Path, planes: list[list[NDArray[Any]]], pixel_format: str, parameters: str) -> Path:
    """Write frames of these planes without loss."""
    height, width = planes[0][0].shape
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=25, options={"qp": "0", "x264-params": parameters})
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        stream.codec_context.color_range = 2 if "range=pc" in parameters else 1  # the container states it too
        for number, values in enumerate(planes):
            frame = av.VideoFrame(width, height, pixel_format)
            for plane, rows in zip(frame.planes, values, strict=True):
                stored = np.zeros((plane.height, plane.line_size // rows.itemsize), rows.dtype)
                stored[:, : rows.shape[1]] = rows
                plane.update(stored.tobytes())
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def flat_planes(colour: tuple[int, int, int], pixel_format: str) -> list[NDArray[Any]]:
    """Return 32 x 48 pixels of one colour; more than 8 bits hold it in their upper ones."""
    bits = 10 if "10" in pixel_format else 8
    dtype = np.uint16 if bits > 8 else np.uint8
    down, across = {"420": (2, 2), "422": (1, 2), "444": (1, 1)}[pixel_format[3:6]]
    shapes = [(32, 48), (32 // down, 48 // across), (32 // down, 48 // across)]
    return [np.full(shape, value << (bits - 8), dtype) for shape, value in zip(shapes, colour, strict=True)]


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le"])
@pytest.mark.parametrize("is_full", [False, True], ids=["limited", "full"])
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("degrees", [0, 90])
def test_colours_are_those_of_the_standard(
    degrees: int, name: str, is_full: bool, pixel_format: str, tmp_path: Path
) -> None:
    parameters = f"colormatrix={name}:range={'pc' if is_full else 'tv'}"
    planes = [flat_planes(colour, pixel_format) for colour in COLOURS]
    path = write_planes(tmp_path / "a.mp4", planes, pixel_format, parameters)
    index = index_video(patch_matrix(path, UPRIGHT[degrees]))
    for size in ((index.height, index.width), (16, 16), (64, 80)):
        rows = read_frames(index, np.arange(len(COLOURS)), image_size=size)
        for colour, row in zip(COLOURS, rows, strict=True):
            expected = to_rgb(colour, MATRICES[name], is_full=is_full)
            assert row is not None
            assert np.abs(row.reshape(3, -1).T - expected).max() <= LEVELS, (colour, size)


def test_a_range_of_luma_alone(tmp_path: Path) -> None:
    """Greys from black to white: 16 and 235 of a limited range, 0 and 255 of a full one."""
    for parameters, black, white in (("range=tv", 16, 235), ("range=pc", 0, 255)):
        planes = [flat_planes((luma, 128, 128), "yuv420p") for luma in (black, white)]
        path = write_planes(tmp_path / "a.mp4", planes, "yuv420p", parameters)
        first, last = read_frames(index_video(path), np.array([0, 1]), image_size=(32, 48))
        assert first is not None
        assert last is not None
        assert (int(first.max()), int(last.min())) == (0, 255)


def write_fields(path: Path) -> Path:
    """Write frames of two fields, each of one colour: in alternating lines, of chroma too."""
    odd, even = (flat_planes(colour, "yuv420p") for colour in COLOURS[:2])
    mixed = []
    for first, second in zip(even, odd, strict=True):
        plane = first.copy()
        plane[1::2] = second[1::2]
        mixed.append(plane)
    return write_planes(path, [mixed] * 3, "yuv420p", "tff=1:colormatrix=bt709")


def test_fields_keep_their_own_colours(tmp_path: Path) -> None:
    """Chroma of alternating lines belongs to alternating fields: read as a whole picture, the two would be mixed."""
    (row,) = read_frames(index_video(write_fields(tmp_path / "a.mp4")), np.array([1]), image_size=(32, 48))
    for parity, colour in ((0, COLOURS[1]), (1, COLOURS[0])):
        assert row is not None
        lines = row[:, parity::2].reshape(3, -1).T
        assert np.abs(lines - to_rgb(colour, "bt709", is_full=False)).max() <= LEVELS


@pytest.mark.parametrize("degrees", [90, 270])
def test_fields_that_would_become_columns_are_refused(degrees: int, tmp_path: Path) -> None:
    path = patch_matrix(write_fields(tmp_path / "a.mp4"), UPRIGHT[degrees])
    with pytest.raises(
        DataError, match=r"a\.mp4: it is interlaced, and its display matrix turns its lines into columns"
    ):
        index_video(path)


def test_fields_may_stand_on_their_head(tmp_path: Path) -> None:
    index = index_video(patch_matrix(write_fields(tmp_path / "a.mp4"), UPRIGHT[180]))
    assert index.display.is_interlaced


@pytest.mark.parametrize("name", ["YCgCo", "bt2020c", "ICtCp"])
def test_other_matrices_are_refused_by_name(name: str, tmp_path: Path) -> None:
    planes = [flat_planes(colour, "yuv444p") for colour in COLOURS]
    path = write_planes(tmp_path / "a.mp4", planes, "yuv444p", f"colormatrix={name}")
    number = {"YCgCo": 8, "bt2020c": 10, "ICtCp": 14}[name]
    message = (
        rf"a\.mp4: its colours cannot be turned into RGB \(pixel format yuv444p, matrix number {number} of ITU-T H"
    )
    with pytest.raises(DataError, match=message):
        index_video(path)


def test_the_doctor_says_what_is_interlaced_or_for_hdr(tmp_path: Path, write_text: Writer) -> None:
    write_fields(tmp_path / "fields.mp4")
    hdr = [flat_planes(colour, "yuv420p10le") for colour in COLOURS[:3]]
    for name, transfer in (("pq", "smpte2084"), ("hlg", "arib-std-b67")):
        parameters = f"colormatrix=bt2020nc:colorprim=bt2020:transfer={transfer}"
        write_planes(tmp_path / f"{name}.mp4", hdr, "yuv420p10le", parameters)
    write_planes(tmp_path / "plain.mp4", [flat_planes(COLOURS[0], "yuv420p")] * 3, "yuv420p", "colormatrix=bt709")
    ids = ["fields", "pq", "hlg", "plain"]
    for video_id in ids:
        write_text(tmp_path / f"{video_id}.csv", "phase\nx\nx\nx\n")
    write_text(tmp_path / "videos.csv", "video,annotation\n" + "".join(f"{v}.mp4,{v}.csv\n" for v in ids))
    data_set = find_format("csv").open(tmp_path, Labels(("x",)))
    checkup = examine(data_set, {"all": ids}, ["x"], fps=5.0, progress=False)
    assert [(found.severity, found.subject) for found in checkup.findings] == [
        ("warning", "fields"),
        ("note", "pq"),
        ("note", "hlg"),
    ]
    fields, pq, hlg = (str(found) for found in checkup.findings)
    assert "its pictures are interlaced: each holds two moments" in fields
    assert "(PQ)" in pq
    assert "(HLG)" in hlg
