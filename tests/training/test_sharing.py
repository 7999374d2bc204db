"""Every clip of a step goes to one replica, every frame to one rank, every video to one rank."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqckpt.data import Clip, Video, order_clips
from seqckpt.errors import UsageError
from seqckpt.training.ranks import Ranks, join_ranks
from seqckpt.training.sharing import deal, deal_evenly, take_share

Lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def make_clip(name: str, length: int, lane: int | None = None) -> Clip:
    frames = torch.zeros(length, 3, 1, 1, dtype=torch.uint8)
    phases = torch.zeros(length, dtype=torch.int64)
    video = Video(name, frames, np.arange(length, dtype=np.float64), phases, None, Path(name))
    return Clip(video, 0, length, lane=lane)


def all_ranks(num_replicas: int, num_frame_ranks: int) -> list[Ranks]:
    world_size = num_replicas * num_frame_ranks
    return [Ranks(rank, rank, world_size, num_frame_ranks) for rank in range(world_size)]


def frames_of(clip: Clip, span: tuple[int, int]) -> list[tuple[str, int]]:
    return [(clip.video.video_id, clip.start + k) for k in range(*span)]


@given(Lengths, st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_each_frame_of_a_batch_counts_once(lengths: list[int], replicas: int, frame_ranks: int, lanes: bool) -> None:
    batch = [make_clip(f"{k}", length, k if lanes else None) for k, length in enumerate(lengths)]
    shares = [take_share(batch, ranks) for ranks in all_ranks(replicas, frame_ranks)]
    clips = Counter(clip.video.video_id for share in shares[::frame_ranks] if share.counts for clip in share.clips)
    assert clips == Counter(f"{k}" for k in range(len(batch)))
    assert all(share.clips and sum(stop - start for start, stop in share.spans) > 0 for share in shares)
    for start in range(0, len(shares), frame_ranks):
        of_replica = shares[start : start + frame_ranks]
        assert all([len(c) for c in share.clips] == [len(c) for c in of_replica[0].clips] for share in of_replica)
        if sum(len(clip) for clip in of_replica[0].clips) >= frame_ranks and of_replica[0].counts:
            pairs = ((c, s) for share in of_replica for c, s in zip(share.clips, share.spans, strict=True))
            read = Counter(frame for clip, span in pairs for frame in frames_of(clip, span))
            assert read == Counter(f for clip in of_replica[0].clips for f in frames_of(clip, (0, len(clip))))
    most = max(len(share.clips) for share in shares)
    assert most == -(-len(batch) // replicas)


def test_a_lane_stays_with_its_replica() -> None:
    batch = [make_clip(f"{lane}", 5, lane) for lane in (0, 2, 3, 5)]
    shares = [take_share(batch, ranks) for ranks in all_ranks(2, 1)]
    assert [[clip.lane for clip in share.clips] for share in shares] == [[0, 2], [3, 5]]


def test_a_replica_without_clips_takes_part_without_counting() -> None:
    share = take_share([make_clip("only", 30, 0)], all_ranks(2, 1)[1])
    assert not share.counts
    assert [(len(clip), clip.lane) for clip in share.clips] == [(1, None)]
    assert share.spans == [(0, 1)]


@given(Lengths, st.integers(1, 6))
def test_dealing(sizes: list[int], num_hands: int) -> None:
    for hands in (deal(sizes, num_hands), deal_evenly(sizes, num_hands)):
        assert sorted(place for hand in hands for place in hand) == list(range(len(sizes)))
    totals = [sum(sizes[place] for place in hand) for hand in deal(sizes, num_hands)]
    assert max(totals) <= sum(sizes) / num_hands + max(sizes)
    assert max(map(len, deal_evenly(sizes, num_hands))) == -(-len(sizes) // num_hands)


def test_orders_differ_by_epoch_and_are_the_same_on_all_ranks() -> None:
    """Case 62: nothing has to be told the epoch; the union over ranks is all clips."""
    clips = [make_clip(f"{k}", 3 + k) for k in range(7)]
    orders = []
    for epoch in (0, 0, 1):
        batches = order_clips(clips, order="shuffled", batch_size=3, seed=4, epoch=epoch)
        shares = [[take_share(batch, ranks) for batch in batches] for ranks in all_ranks(2, 1)]
        order = [[clip.video.video_id for share in rank if share.counts for clip in share.clips] for rank in shares]
        assert sorted(order[0] + order[1]) == sorted(clip.video.video_id for clip in clips)
        orders.append(order)
    assert orders[0] == orders[1] != orders[2]


def test_frame_parallel_needs_as_many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(UsageError, match=r"frame_parallel=2 with 1 process.*torchrun --nproc-per-node 2"),
        join_ranks(torch.device("cpu"), frame_parallel=2, timeout_seconds=5),
    ):
        pass
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(UsageError, match=r"frame_parallel=2 with 3 process\(es\): expected a multiple of 2"),
        join_ranks(torch.device("cpu"), frame_parallel=2, timeout_seconds=5),
    ):
        pass


def test_alone_all_answers_are_ones_own() -> None:
    with join_ranks(torch.device("cpu"), frame_parallel=1, timeout_seconds=5) as ranks:
        assert (ranks.is_main, ranks.num_replicas, ranks.replica, ranks.frame_rank) == (True, 1, 0, 0)
        assert ranks.add_up([1.5, 2]) == [1.5, 2]
        assert ranks.any_of([True, False]) == [True, False]
        assert ranks.gather("x") == ["x"]
        assert ranks.share("x") == "x"
        with ranks.first_of_machine():
            ranks.wait()
