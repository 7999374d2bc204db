"""Each epoch reads every clip once: in an order that only seed and epoch decide, or in lanes along the videos."""

from __future__ import annotations

from itertools import chain, pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from made_videos import make_video

from seqckpt.data import Clip, cut_clips, order_clips
from seqckpt.data.lanes import fill_lanes
from seqckpt.errors import DataError

CLIPS = cut_clips([make_video(name, 45) for name in "abc"], 20)


def names_of(batches: list[list[Clip]]) -> list[list[str]]:
    return [[f"{clip.video.video_id}:{clip.start}" for clip in batch] for batch in batches]


def order(seed: int, epoch: int, kind: str = "shuffled", batch_size: int = 2) -> list[list[str]]:
    return names_of(order_clips(CLIPS, order=kind, batch_size=batch_size, seed=seed, epoch=epoch))


@pytest.mark.parametrize("kind", ["shuffled", "sequential"])
def test_the_order_follows_from_seed_and_epoch(kind: str) -> None:
    assert order(0, 0, kind) == order(0, 0, kind)
    assert len({str(order(seed, epoch, kind, 1)) for seed in range(3) for epoch in range(3)}) > 4  # sequential: of 6
    assert sorted(chain(*order(0, 1, kind))) == sorted(*names_of([CLIPS]))


def test_shuffled_clips_come_in_another_order_each_time() -> None:
    assert len({str(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    assert [len(batch) for batch in order(0, 0)] == [2, 2, 2, 2, 1]


def test_no_clips_are_no_batches() -> None:
    for kind in ("shuffled", "sequential"):
        assert order_clips([], order=kind, batch_size=2, seed=0, epoch=0) == []


def test_global_random_states_are_left_alone() -> None:
    np.random.seed(3)  # noqa: NPY002 - the global generator is what is to be left alone
    torch.manual_seed(3)
    expected = torch.rand(1), np.random.rand()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    order(0, 0)
    order(0, 0, "sequential")
    assert (torch.rand(1), np.random.rand()) == expected  # noqa: NPY002


@given(
    lengths=st.lists(st.integers(1, 60), max_size=8),
    clip_length=st.one_of(st.none(), st.integers(1, 30)),
    num_lanes=st.integers(1, 5),
    epoch=st.integers(0, 3),
)
def test_a_lane_reads_videos_from_start_to_end(
    lengths: list[int], clip_length: int | None, num_lanes: int, epoch: int
) -> None:
    clips = cut_clips([make_video(f"video{number}", length) for number, length in enumerate(lengths)], clip_length)
    batches = fill_lanes(clips, num_lanes, seed=0, epoch=epoch)
    assert sorted(chain(*names_of(batches))) == sorted(*names_of([clips]))
    for batch in batches:
        lanes = [clip.lane for clip in batch]
        assert lanes == sorted(set(lanes))
        assert set(lanes) <= set(range(num_lanes))
    for lane in range(num_lanes):
        row = [[clip for clip in batch if clip.lane == lane] for batch in batches]
        assert [len(cell) for cell in row] == sorted((len(cell) for cell in row), reverse=True)  # no step left out
        inside = list(chain(*row))
        assert all(clip.resets for clip in inside[:1])
        for one, following in pairwise(inside):
            if following.resets:
                assert one.stop == len(one.video)
            else:
                assert (following.video, following.start) == (one.video, one.stop)
    assert len(batches) == len(fill_lanes(clips, num_lanes, seed=7, epoch=epoch + 1))


def test_lanes_last_about_equally_long() -> None:
    clips = cut_clips([make_video(str(length), length) for length in (80, 10, 70, 30, 20, 30)], 10)
    assert len(fill_lanes(clips, 2, seed=0, epoch=0)) == 12  # 24 clips
    assert len(fill_lanes(clips, 3, seed=0, epoch=0)) == 8


def test_a_lane_that_is_done_is_missing() -> None:
    clips = cut_clips([make_video("a", 30), make_video("b", 10)], 10)
    batches = fill_lanes(clips, 2, seed=0, epoch=0)
    assert [[(clip.video.video_id, clip.lane, clip.resets) for clip in batch] for batch in batches] == [
        [("a", 0, True), ("b", 1, True)],
        [("a", 0, False)],
        [("a", 0, False)],
    ]


def test_impossible_orders() -> None:
    with pytest.raises(DataError, match="order is 'random'; expected shuffled or sequential"):
        order(0, 0, "random")
    for kind in ("shuffled", "sequential"):
        with pytest.raises(DataError, match="batch_size=0; expected at least 1"):
            order(0, 0, kind, 0)
