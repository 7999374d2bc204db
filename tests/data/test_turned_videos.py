"""Videos with a display matrix: read as shown, wherever frames are read, and refused where they cannot be."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from av.video.stream import VideoStream
from PIL import Image
from turned_films import CORNERS, UPRIGHT, find_corners, patch_matrix, write_patches

from seqckpt.data import Labels, examine, find_format, find_shown_size, read_videos, resize_decoded, stream_video
from seqckpt.data.display import Turn, find_turn
from seqckpt.data.frame_cache import cache_path, cache_video
from seqckpt.data.recording import identify, index_recording
from seqckpt.data.video_file import index_video, read_frames
from seqckpt.errors import DataError
from seqckpt.report.thumbnails import make_thumbnails

Writer = Callable[..., Path]
SHOWN = {  # the corners clockwise from the top left, by degrees clockwise
    0: ["red", "green", "blue", "grey"],
    90: ["grey", "red", "green", "blue"],
    180: ["blue", "grey", "red", "green"],
    270: ["green", "blue", "grey", "red"],
}
ROTATIONS = {0: 0, 90: -90, 180: -180, 270: 90}  # as FFmpeg counts: the other way round


@pytest.mark.parametrize("degrees", UPRIGHT)
@pytest.mark.parametrize("image_size", [(64, 64), (64, 32), (32, 64), (16, 24), (96, 80)])
def test_frames_come_as_shown(degrees: int, image_size: tuple[int, int], tmp_path: Path) -> None:
    path = patch_matrix(write_patches(tmp_path / "a.mp4"), UPRIGHT[degrees])
    index = index_video(path)
    assert index.display.turn == Turn(degrees)
    assert (index.height, index.width) == ((64, 32) if degrees % 180 else (32, 64))
    assert find_shown_size(index) == (index.height, index.width)
    for row in read_frames(index, np.array([0, 3]), image_size=image_size):
        assert row.shape == (3, *image_size)
        assert find_corners(row) == SHOWN[degrees]


@pytest.mark.parametrize("degrees", UPRIGHT)
def test_every_pixel_is_that_of_the_stored_picture(degrees: int, tmp_path: Path) -> None:
    """With colour for every pixel, turning is exact."""
    plain = write_patches(tmp_path / "a.mp4", pixel_format="yuv444p")
    (stored,) = read_frames(index_video(plain), np.array([2]), image_size=(32, 64))
    index = index_video(patch_matrix(plain, UPRIGHT[degrees]))
    (shown,) = read_frames(index, np.array([2]), image_size=(index.height, index.width))
    assert np.array_equal(shown, np.rot90(stored, -degrees // 90, axes=(1, 2)))


@pytest.mark.skipif(not hasattr(VideoStream, "set_display_matrix"), reason="a PyAV that writes no display matrix")
@pytest.mark.parametrize("suffix", ["mov", "mkv"])
@pytest.mark.parametrize("degrees", UPRIGHT)
def test_other_containers(degrees: int, suffix: str, tmp_path: Path) -> None:
    """The same packets, with the matrix where that container keeps it."""
    source, path = patch_matrix(write_patches(tmp_path / "a.mp4"), UPRIGHT[degrees]), tmp_path / f"b.{suffix}"
    a, b, c, d = (round(value * 65536) for value in UPRIGHT[degrees])
    with av.open(str(source)) as before, av.open(str(path), "w") as after:
        stream = after.add_stream_from_template(before.streams.video[0])
        stream.set_display_matrix([a, b, 0, c, d, 0, 0, 0, 1 << 30])
        for packet in before.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                after.mux(packet)
    (row,) = read_frames(index_video(path), np.array([0]), image_size=(64, 64))
    assert find_corners(row) == SHOWN[degrees]


@pytest.mark.parametrize("degrees", UPRIGHT)
def test_the_turn_is_ffmpegs(degrees: int, tmp_path: Path) -> None:
    with av.open(str(patch_matrix(write_patches(tmp_path / "a.mp4"), UPRIGHT[degrees]))) as container:
        frame = next(container.decode(video=0))
    assert (find_turn(frame).degrees, frame.rotation) == (degrees, ROTATIONS[degrees])
    assert find_corners(resize_decoded(frame, (64, 64))) == SHOWN[degrees]  # as online prediction resizes it


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_a_turn_rounded_and_scaled_is_that_turn(scale: float, tmp_path: Path) -> None:
    turn = math.radians(90.3)
    matrix = tuple(scale * value for value in (math.cos(turn), math.sin(turn), -math.sin(turn), math.cos(turn)))
    index = index_video(patch_matrix(write_patches(tmp_path / "a.mp4"), matrix))  # type: ignore[arg-type]
    assert index.display.turn == Turn(90)


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        ((0.7071, 0.7071, -0.7071, 0.7071), "turned by 45 degrees clockwise"),
        ((0.8660, -0.5, 0.5, 0.8660), "turned by 330 degrees clockwise"),
        ((-1, 0, 0, 1), "turned by 180 degrees clockwise and mirrored"),
        ((1, 0, 0, -1), "turned by 0 degrees clockwise and mirrored"),
        ((0, 1, 1, 0), "turned by 90 degrees clockwise and mirrored"),
    ],
)
def test_other_angles_and_flips_are_refused(
    matrix: tuple[float, float, float, float], said: str, tmp_path: Path, write_text: Writer
) -> None:
    path = patch_matrix(write_patches(tmp_path / "a.mp4", num_frames=25), matrix)
    message = rf"a\.mp4: its display matrix says that pictures are shown {said}; expected 0, 90, 180 or 270 degrees"
    for read in (
        lambda: index_video(path),
        lambda: stream_video(path, fps=5.0, image_size=(16, 16)),
        lambda: cache_video(path, fps=5.0, image_size=(16, 16), cache_dir=tmp_path / "cache"),
    ):
        with pytest.raises(DataError, match=message):
            read()
    write_text(tmp_path / "a.csv", "second,phase\n0,x\n")
    write_text(tmp_path / "videos.csv", "video,annotation\na.mp4,a.csv\n")
    data_set = find_format("csv").open(tmp_path, Labels(("x",)))
    with pytest.raises(DataError, match=message):
        read_videos(data_set, ["a"], fps=5.0, image_size=16, cache_dir=tmp_path / "cache", progress=False)
    checkup = examine(data_set, {"all": ["a"]}, ["x"], fps=5.0, progress=False)
    assert said in next(finding.message for finding in checkup.findings if finding.severity == "error")


# --- caches ---


def test_a_cache_of_pictures_as_stored_is_not_taken(tmp_path: Path) -> None:
    """The key holds the turn; that of an upright video is the same as ever, so that its cache is found."""
    options = {"fps": 5.0, "image_size": (32, 32), "cache_dir": tmp_path / "cache"}
    path = write_patches(tmp_path / "a.mp4", num_frames=10)
    status = path.stat()
    assert identify(path) == ["a.mp4", status.st_size, status.st_mtime_ns, identify(path)[3]]
    places = {0: cache_path(path, **options)}  # type: ignore[arg-type]
    for degrees in (90, 180, 270):
        patch_matrix(path, UPRIGHT[degrees])
        assert identify(path)[4] == [degrees, False]
        places[degrees] = cache_path(path, **options)  # type: ignore[arg-type]
        for _ in range(2):  # made, and opened again
            video = cache_video(path, **options)  # type: ignore[arg-type]
            assert find_corners(video.frames[0:1][0].numpy()) == SHOWN[degrees]
    assert len(set(places.values())) == 4


def test_cached_streamed_and_drawn_small_alike(tmp_path: Path) -> None:
    path = patch_matrix(write_patches(tmp_path / "a.mp4", num_frames=10), UPRIGHT[90])
    cached = cache_video(path, fps=5.0, image_size=(64, 64), cache_dir=tmp_path / "cache").frames
    streamed = stream_video(path, fps=5.0, image_size=(64, 64)).frames
    assert torch.equal(cached[0:2], streamed[0:2])
    thumbnails = make_thumbnails({"a": cached}, budget_bytes=100_000)
    assert thumbnails is not None
    (tmp_path / "sheet.jpg").write_bytes(thumbnails.sheets["a"][0])
    with Image.open(tmp_path / "sheet.jpg") as sheet:
        first = sheet.convert("RGB").crop((0, 0, thumbnails.width, thumbnails.height))
    assert find_corners(np.asarray(first).transpose(2, 0, 1)) == SHOWN[90]


def test_damaged_stretches_are_repeated_as_shown(tmp_path: Path) -> None:
    path = patch_matrix(write_patches(tmp_path / "a.mp4", num_frames=60, options={"g": "10"}), UPRIGHT[270])
    content = bytearray(path.read_bytes())
    middle = content.index(b"mdat") + (len(content) - content.index(b"mdat")) // 2
    content[middle : middle + 40] = bytes(40)
    path.write_bytes(content)
    frames = stream_video(path, fps=25.0, image_size=(64, 64), corrupt="repeat").frames
    assert {tuple(find_corners(frame.numpy())) for frame in frames[0 : len(frames)]} == {tuple(SHOWN[270])}


# --- shape of pixels, and the doctor ---


@pytest.mark.parametrize(("degrees", "size"), [(0, (32, 128)), (90, (128, 32)), (180, (32, 128)), (270, (128, 32))])
def test_pixels_that_are_not_square(degrees: int, size: tuple[int, int], tmp_path: Path) -> None:
    """Twice as wide as high, as stored: so many pixels more across, before the picture is turned."""
    path = write_patches(tmp_path / "a.mp4", sample_aspect_ratio=Fraction(2))
    assert find_shown_size(index_recording(patch_matrix(path, UPRIGHT[degrees]))) == size


@pytest.fixture
def examine_turns(tmp_path: Path, write_text: Writer) -> Callable[..., list[tuple[str, str, str]]]:
    """A function from degrees of videos to what the doctor says of them."""

    def examine_them(*turns: int) -> list[tuple[str, str, str]]:
        rows = ""
        for number, degrees in enumerate(turns):
            patch_matrix(write_patches(tmp_path / f"v{number}.mp4", num_frames=25), UPRIGHT[degrees])
            write_text(tmp_path / f"v{number}.csv", "second,phase\n0,x\n")
            rows += f"v{number}.mp4,v{number}.csv\n"
        write_text(tmp_path / "videos.csv", f"video,annotation\n{rows}")
        data_set = find_format("csv").open(tmp_path, Labels(("x",)))
        checkup = examine(data_set, {"all": data_set.video_ids}, ["x"], fps=5.0, progress=False)
        return [(found.severity, found.subject, str(found)) for found in checkup.findings]

    return examine_them


def test_the_doctor_says_which_are_turned(examine_turns: Callable[..., list[tuple[str, str, str]]]) -> None:
    found = examine_turns(90, 90)
    assert [(severity, subject) for severity, subject, _ in found] == [("note", "v0"), ("note", "v1")]
    assert "shown turned by 90 degrees clockwise" in found[0][2]


def test_the_doctor_warns_where_some_are(examine_turns: Callable[..., list[tuple[str, str, str]]]) -> None:
    found = examine_turns(0, 270, 0, 180)
    assert [(severity, subject) for severity, subject, _ in found] == [
        ("note", "v1"),
        ("note", "v3"),
        ("warning", "all videos"),
    ]
    assert "2 of 4 videos are turned by their display matrix (v1 by 270, v3 by 180 degrees)" in found[2][2]


def test_the_doctor_is_silent_on_upright_ones(examine_turns: Callable[..., list[tuple[str, str, str]]]) -> None:
    assert examine_turns(0, 0) == []


# --- images ---


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_images_are_turned_as_exif_says(degrees: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same of folders of frames: photographs of a phone."""
    stored = np.zeros((32, 64, 3), np.uint8)
    red, green, blue, grey = CORNERS.values()
    stored[:16, :32], stored[:16, 32:], stored[16:, 32:], stored[16:, :32] = red, green, blue, grey
    exif = Image.Exif()
    exif[0x0112] = {0: 1, 90: 6, 180: 3, 270: 8}[degrees]
    folder = tmp_path / "frames"
    folder.mkdir()
    for number in range(3):
        Image.fromarray(stored).save(folder / f"{number}.jpg", exif=exif, quality=95)
    with caplog.at_level(logging.WARNING):
        frames = stream_video(folder, fps=1.0, image_size=(64, 64), frame_rate=1.0).frames
        assert find_corners(frames[1:2][0].numpy()) == SHOWN[degrees]
    assert find_shown_size(index_recording(folder, frame_rate=1.0)) == ((64, 32) if degrees % 180 else (32, 64))
    key = identify(folder, frame_rate=1.0)
    assert len(key) == (6 if degrees else 5)  # of an upright one, as ever
    assert not caplog.text
