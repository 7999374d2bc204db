"""Clips cover every frame once, and batches come in an order that only seed and epoch decide."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from seqckpt.data import Clip, FrameSource, Video, clip_loader, count_classes, cut_clips
from seqckpt.data.videos import IGNORE_INDEX
from seqckpt.errors import DataError


def make_video(video_id: str, length: int, phases: list[int] | None = None) -> Video:
    """A video in memory: each frame's pixels hold its number."""
    frames = torch.arange(length, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    labels = torch.tensor(phases if phases is not None else [k % 7 for k in range(length)], dtype=torch.int64)
    return Video(video_id, frames, np.arange(length, dtype=float), labels, None, Path(f"{video_id}.mp4"))


class Counting:
    """A FrameSource that counts how often it is read."""

    def __init__(self, frames: FrameSource) -> None:
        self.frames, self.num_reads = frames, 0

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: slice) -> torch.Tensor:
        self.num_reads += 1
        return self.frames[index]


def names_of(batches: list[list[Clip]]) -> list[list[str]]:
    return [[f"{clip.video.video_id}:{clip.start}" for clip in batch] for batch in batches]


@given(lengths=st.lists(st.integers(0, 60), max_size=5), clip_length=st.one_of(st.none(), st.integers(1, 70)))
def test_every_frame_is_in_one_clip(lengths: list[int], clip_length: int | None) -> None:
    videos = [make_video(f"video{number}", length) for number, length in enumerate(lengths)]
    clips = cut_clips(videos, clip_length)
    for video in videos:
        own = [clip for clip in clips if clip.video is video]
        assert [frame for clip in own for frame in range(clip.start, clip.stop)] == list(range(len(video)))
        assert all(len(clip) == (clip_length or len(video)) for clip in own[:-1])
    assert all(len(clip) for clip in clips)


def test_the_shorter_last_clip_is_kept() -> None:
    assert [(clip.start, clip.stop) for clip in cut_clips([make_video("a", 50)], 20)] == [(0, 20), (20, 40), (40, 50)]
    assert [(clip.start, clip.stop) for clip in cut_clips([make_video("a", 5)], 500)] == [(0, 5)]


@pytest.mark.parametrize("clip_length", [0, -1])
def test_impossible_lengths(clip_length: int) -> None:
    with pytest.raises(DataError, match=f"clip_length is {clip_length}"):
        cut_clips([make_video("a", 5)], clip_length)


def test_a_clips_frames_and_targets() -> None:
    clip = Clip(make_video("a", 50), 20, 40)
    assert isinstance(clip.frames, FrameSource)
    assert len(clip.frames) == len(clip.targets) == len(clip) == 20
    assert clip.frames[0:20][:, 0, 0, 0].tolist() == list(range(20, 40))
    assert clip.frames[5:7][:, 0, 0, 0].tolist() == [25, 26]
    assert clip.frames[-3:][:, 0, 0, 0].tolist() == [37, 38, 39]
    assert len(clip.frames[7:5]) == 0
    assert len(clip.frames[15:99]) == 5
    assert clip.targets.tolist() == [k % 7 for k in range(20, 40)]
    with pytest.raises(ValueError, match="step 2"):
        clip.frames[::2]


def test_frames_are_read_when_they_are_sliced_and_no_sooner() -> None:
    video = make_video("a", 50)
    source = Counting(video.frames)
    (clip,) = cut_clips([Video("a", source, video.seconds, video.phases, None, video.path)], None)
    frames = clip.frames
    assert source.num_reads == 0
    assert torch.equal(frames[3:5], frames[3:5])
    assert source.num_reads == 2
    loaded = clip.load()
    assert isinstance(loaded.frames, torch.Tensor)
    assert source.num_reads == 3
    assert torch.equal(loaded.frames[3:5], frames[3:5])


CLIPS = cut_clips([make_video(name, 45) for name in "abc"], 20)


def test_the_order_follows_from_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[list[str]]:
        return names_of(list(clip_loader(CLIPS, batch_size=2, seed=seed, epoch=epoch, shuffle=True)))

    assert order(0, 0) == order(0, 0)
    assert len({str(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    assert sorted(chain(*order(0, 1))) == sorted(*names_of([CLIPS]))


def test_in_order_without_shuffling_the_last_batch_shorter() -> None:
    loader = clip_loader(CLIPS, batch_size=2, seed=0, epoch=5, shuffle=False)
    assert names_of(list(loader)) == [["a:0", "a:20"], ["a:40", "b:0"], ["b:20", "b:40"], ["c:0", "c:20"], ["c:40"]]
    assert len(loader) == 5
    assert names_of(list(loader)) == names_of(list(loader))


def test_no_clips_are_no_batches() -> None:
    assert list(clip_loader([], batch_size=2, seed=0, epoch=0, shuffle=True)) == []


def test_global_random_states_are_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    list(clip_loader(CLIPS, batch_size=1, seed=0, epoch=0, shuffle=True))
    assert torch.equal(torch.rand(1), expected)


def test_workers_bring_the_same_clips_with_their_frames() -> None:
    options = {"batch_size": 2, "seed": 1, "epoch": 2, "shuffle": True}
    alone = list(clip_loader(CLIPS, **options))  # type: ignore[arg-type]
    helped = list(clip_loader(CLIPS, num_workers=2, **options))  # type: ignore[arg-type]
    assert names_of(alone) == names_of(helped)
    for one, other in zip(chain(*alone), chain(*helped), strict=True):
        assert isinstance(other.frames, torch.Tensor)
        assert torch.equal(one.frames[:], other.frames)
        assert torch.equal(one.targets, other.targets)


@pytest.mark.parametrize(("batch_size", "num_workers"), [(0, 0), (1, -1)])
def test_impossible_loaders(batch_size: int, num_workers: int) -> None:
    with pytest.raises(DataError, match=f"batch_size={batch_size}, num_workers={num_workers}"):
        clip_loader(CLIPS, batch_size=batch_size, seed=0, epoch=0, shuffle=False, num_workers=num_workers)


def test_classes_are_counted_without_unlabelled_frames() -> None:
    videos = [make_video("a", 4, [0, 2, IGNORE_INDEX, 2]), make_video("b", 2, [2, 0]), make_video("c", 0)]
    assert count_classes(videos, 4).tolist() == [2, 0, 3, 0]
    assert count_classes([], 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("label", [-1, 7, 255])
def test_labels_out_of_range_name_the_video(label: int) -> None:
    with pytest.raises(DataError, match=rf"a \(a\.mp4\) has the label {label}; expected 0 to 6"):
        count_classes([make_video("a", 3, [0, label, 1])], 7)


def test_a_video_has_one_length() -> None:
    video = make_video("a", 5)
    with pytest.raises(ValueError, match="expected one length for all"):
        Video("a", video.frames, video.seconds[:4], video.phases, None, video.path)
    with pytest.raises(ValueError, match="tools"):
        Video("a", video.frames, video.seconds, video.phases, torch.zeros(4, 7), video.path)
