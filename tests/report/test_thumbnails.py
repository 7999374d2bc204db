"""Pictures within a budget of bytes: which frames they show, and what is read for them."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from made_reports import GreyFrames
from PIL import Image

from seqckpt.report import Thumbnails, make_thumbnails


def read_greys(made: Thumbnails, video_id: str) -> list[int]:
    """Return the brightness in the middle of every picture of a video, the last sheet's unused places left out."""
    greys = []
    for sheet in made.sheets[video_id]:
        picture = np.asarray(Image.open(io.BytesIO(sheet)).convert("L")).astype(int)
        for top in range(0, picture.shape[0], made.height):
            row = picture[top + made.height // 2, made.width // 2 :: made.width]
            greys += row.tolist()
    return greys


def test_every_frame_has_its_picture_where_there_is_room() -> None:
    made = make_thumbnails({"a": GreyFrames(40), "b": GreyFrames(3)}, budget_bytes=10**6)
    assert made is not None
    assert (made.width, made.height, made.every) == (64, 64, 1)
    for video_id, num_frames in (("a", 40), ("b", 3)):
        greys = read_greys(made, video_id)[:num_frames]
        assert greys == pytest.approx([5 * frame for frame in range(num_frames)], abs=3)


@pytest.mark.parametrize(("num_frames", "budget_bytes"), [(51, 1500), (51, 1000), (300, 3000), (1000, 2000)])
def test_the_budget_holds_and_pictures_are_evenly_spread(num_frames: int, budget_bytes: int) -> None:
    made = make_thumbnails({"a": GreyFrames(num_frames)}, budget_bytes=budget_bytes)
    assert made is not None
    assert made.num_bytes <= budget_bytes
    assert made.every > 1
    shown = range(0, num_frames, made.every)
    greys = read_greys(made, "a")[: len(shown)]
    assert greys == pytest.approx([5 * frame % 256 for frame in shown], abs=4)


def test_a_long_video_has_several_sheets() -> None:
    made = make_thumbnails({"a": GreyFrames(600, size=16)}, budget_bytes=10**6)
    assert made is not None
    assert len(made.sheets["a"]) == 3
    assert read_greys(made, "a")[:600] == pytest.approx([5 * frame % 256 for frame in range(600)], abs=4)


def test_frames_far_apart_are_read_alone() -> None:
    frames = GreyFrames(20_000)
    made = make_thumbnails({"a": frames}, budget_bytes=20_000)
    assert made is not None
    assert made.every > 8
    assert frames.num_read < 2000


def test_noise_needs_another_try_and_stays_within_the_budget() -> None:
    """The probe sees plain frames only; the others take far more."""
    frames = torch.randint(0, 256, (200, 3, 64, 64), dtype=torch.uint8)
    for place in (25, 75, 125, 175):
        frames[place] = 0
    made = make_thumbnails({"a": frames}, budget_bytes=60_000)
    assert made is not None
    assert 0 < made.num_bytes <= 60_000


def test_there_may_be_no_room_at_all() -> None:
    assert make_thumbnails({"a": GreyFrames(10)}, budget_bytes=10) is None
    assert make_thumbnails({"a": GreyFrames(10)}, budget_bytes=0) is None
    assert make_thumbnails({}, budget_bytes=1000) is None


def test_large_frames_are_made_smaller_and_small_ones_kept() -> None:
    large = make_thumbnails({"a": GreyFrames(5, size=300)}, budget_bytes=10**6)
    small = make_thumbnails({"a": GreyFrames(5, size=32)}, budget_bytes=10**6)
    assert large is not None
    assert small is not None
    assert (large.width, small.width) == (160, 32)
