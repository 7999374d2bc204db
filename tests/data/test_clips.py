"""Clips cover every frame once; classes are counted over videos."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from made_videos import Recorded, make_video, with_frames

from seqckpt.data import Clip, FrameSource, Video, count_classes, cut_clips
from seqckpt.data.videos import IGNORE_INDEX
from seqckpt.errors import DataError


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
    source = Recorded(video.frames)
    (clip,) = cut_clips([with_frames(video, source)], None)
    frames = clip.frames
    assert source.reads == []
    assert torch.equal(frames[3:5], frames[3:5])
    assert source.reads == [(3, 5)] * 2
    loaded = clip.load()
    assert isinstance(loaded.frames, torch.Tensor)
    assert source.reads == [(3, 5), (3, 5), (0, 50)]
    assert torch.equal(loaded.frames[3:5], frames[3:5])


def test_a_video_begins_with_a_reset() -> None:
    assert [clip.resets for clip in cut_clips([make_video("a", 50), make_video("b", 5)], 20)] == [
        *(True, False, False),
        True,
    ]


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
