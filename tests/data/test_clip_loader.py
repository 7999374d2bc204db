"""What an epoch's loader hands to the step: the clips in order, read ahead or loaded, the same pixels either way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from itertools import chain
from typing import Any

import pytest
import torch
from made_videos import Recorded, make_video, with_frames

from seqckpt.data import Augmentation, Clip, clip_loader, cut_clips, explain_dead_workers, order_clips
from seqckpt.data.prefetch import Prefetched
from seqckpt.errors import DataError, TrainingError

VIDEOS = [with_frames(video, Recorded(video.frames)) for video in (make_video(name, 45) for name in "abc")]
CLIPS = cut_clips(VIDEOS, 20)
BATCHES = order_clips(CLIPS, order="shuffled", batch_size=2, seed=1, epoch=2)
STRONG = Augmentation(smallest_crop=0.5, flip=0.5, rotation_degrees=90, brightness=0.9, contrast=0.5)


def load(**options: Any) -> list[list[Clip]]:
    return list(clip_loader(BATCHES, seed=1, **{"epoch": 2, **options}))


def place_of(clip: Clip) -> tuple[str, int, int]:
    return clip.video.video_id, clip.start, clip.stop


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_come_in_their_order(num_workers: int) -> None:
    loaded = load(num_workers=num_workers)
    assert [[place_of(clip) for clip in batch] for batch in loaded] == [
        [place_of(clip) for clip in batch] for batch in BATCHES
    ]


def test_lanes_stay_with_their_clips() -> None:
    batches = order_clips(CLIPS, order="sequential", batch_size=2, seed=0, epoch=0)
    for batch in clip_loader(batches, seed=0, epoch=0):
        assert [clip.lane for clip in batch] == list(range(len(batch)))


@pytest.mark.parametrize("augmentation", [Augmentation(), STRONG], ids=["as stored", "augmented"])
def test_workers_bring_the_same_pixels(augmentation: Augmentation) -> None:
    """Case 69: nothing depends on the worker, on their number, or on what was drawn before."""
    alone = list(chain(*load(augmentation=augmentation)))
    torch.rand(5)
    for num_workers in (1, 2):
        helped = list(chain(*load(augmentation=augmentation, num_workers=num_workers)))
        for one, other in zip(alone, helped, strict=True):
            assert isinstance(other.frames, torch.Tensor)
            assert torch.equal(one.frames[0 : len(one)], other.frames)
            assert torch.equal(one.targets, other.targets)


def test_epochs_differ_and_a_resumed_one_repeats() -> None:
    def pixels(epoch: int) -> list[torch.Tensor]:
        return [clip.frames[0:1] for clip in chain(*load(augmentation=STRONG, epoch=epoch))]

    first, again, other = pixels(0), pixels(0), pixels(1)
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not all(torch.equal(one, two) for one, two in zip(first, other, strict=True))


def test_frames_are_read_ahead_and_only_when_asked_for() -> None:
    recorded = [video.frames for video in VIDEOS]
    before = sum(len(source.reads) for source in recorded)  # type: ignore[attr-defined]
    clips = list(chain(*load()))
    assert all(isinstance(clip.frames, Prefetched) for clip in clips)
    assert sum(len(source.reads) for source in recorded) == before  # type: ignore[attr-defined]


def test_frames_in_memory_are_used_as_they_are() -> None:
    (clip,) = cut_clips([make_video("a", 20)], None)
    ((loaded,),) = clip_loader([[clip]], seed=0, epoch=0)
    assert not isinstance(loaded.frames, Prefetched)


def test_the_random_state_is_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    for clip in chain(*load(augmentation=STRONG)):
        clip.frames[0:5]
    assert torch.equal(torch.rand(1), expected)


def test_an_impossible_number_of_workers() -> None:
    with pytest.raises(DataError, match="num_workers=-1; expected at least 0"):
        load(num_workers=-1)


class _Broken(Recorded):
    def __getitem__(self, index: slice) -> torch.Tensor:
        raise DataError("frame 3 is damaged; repair the file")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_a_worker_cannot_read_is_said_in_one_message(num_workers: int) -> None:
    video = make_video("a", 20)
    batches = [[clip] for clip in cut_clips([with_frames(video, _Broken(video.frames))], 10)]
    loader = clip_loader(batches, seed=0, epoch=0, num_workers=num_workers)
    with pytest.raises(DataError) as caught:
        [clip.frames[0:1] for (clip,) in loader]
    assert str(caught.value) == "frame 3 is damaged; repair the file"


class Deadly(Recorded):
    """Frames whose reading kills the process that reads them."""

    def __getitem__(self, index: slice) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("dead already")


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL to send")
def test_a_worker_that_dies_is_reported_with_its_video() -> None:
    good, bad = make_video("good", 40), make_video("bad", 20)
    clips = [*cut_clips([good], 20), *cut_clips([with_frames(bad, Deadly(bad.frames))], None)]
    loader = clip_loader([[clip] for clip in clips], seed=0, epoch=0, num_workers=1)
    taken = []
    around = explain_dead_workers(lambda: "step 1 was done, and the next loaded: good, bad")  # as the trainer does
    with pytest.raises(TrainingError, match=r"ended unexpectedly while .*\n.*data\.num_workers") as caught, around:
        taken.extend(batch[0].video.video_id for batch in loader)
    assert set(taken) <= {"good"}
    # A worker is two batches ahead: what was waited for is the video, or one of the two before it.
    assert "bad" in str(caught.value) or "good" in str(caught.value)


@pytest.mark.parametrize("error", [ConnectionResetError(104, "Connection reset by peer"), EOFError()])
def test_a_connection_that_a_dead_worker_broke_is_one_of_its_signs(error: Exception) -> None:
    def break_off(*unused: object) -> object:
        raise error

    receiver, sender = multiprocessing.Pipe(duplex=False)
    sender.close()  # the next read ends in multiprocessing's own code, with EOFError
    message = r"ended unexpectedly while video01 was waited for"
    with pytest.raises(TrainingError, match=message), explain_dead_workers(lambda: "video01 was waited for"):
        receiver.recv()
    with pytest.raises(type(error)), explain_dead_workers(lambda: "video01 was waited for"):
        break_off()  # raised elsewhere: not a worker's matter
