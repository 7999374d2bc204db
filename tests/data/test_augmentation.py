"""Augmentation: one set of parameters per clip, the same in every chunk, replay and process; other ones elsewhere."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

from seqckpt import ChunkedEncoder, check_replay
from seqckpt.data import Augmentation, FrameSource
from seqckpt.errors import DataError

ALL = Augmentation(
    smallest_crop=0.3,
    flip=0.5,
    rotation_degrees=30.0,
    brightness=0.4,
    contrast=0.4,
    saturation=0.4,
    hue=0.2,
)
ONE_EACH = {
    "crop": Augmentation(smallest_crop=0.3),
    "flip": Augmentation(flip=1.0),
    "rotation": Augmentation(rotation_degrees=30.0),
    "brightness": Augmentation(brightness=0.5),
    "contrast": Augmentation(contrast=0.5),
    "saturation": Augmentation(saturation=0.5),
    "hue": Augmentation(hue=0.3),
    "all": ALL,
}


def make_frames(num_frames: int = 20) -> Tensor:
    return torch.randint(256, (num_frames, 3, 12, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))


def augment(frames: FrameSource, kind: Augmentation = ALL, **changes: Any) -> FrameSource:
    return kind.apply_to(frames, **{"seed": 0, "epoch": 0, "video_id": "video01", "start": 0, **changes})


@pytest.mark.parametrize("name", ONE_EACH)
def test_chunks_are_the_whole_clip_bit_for_bit(name: str) -> None:
    frames = make_frames()
    source = augment(frames, ONE_EACH[name])
    whole = source[0:20]
    assert (whole.shape, whole.dtype) == (frames.shape, torch.uint8)
    assert not torch.equal(whole, frames)
    for size in (1, 4, 7):
        assert torch.equal(torch.cat([source[k : k + size] for k in range(0, 20, size)]), whole)
    assert torch.equal(frames, make_frames())


def test_all_frames_of_a_clip_are_changed_alike() -> None:
    """Case 96: twenty times one picture is still that, in chunks of 4 too."""
    source = augment(make_frames(1).expand(20, -1, -1, -1))
    for k in range(0, 20, 4):
        assert torch.equal(source[k : k + 4], source[0:1].expand(4, -1, -1, -1))


def test_parameters_differ_by_seed_epoch_video_and_clip_only() -> None:
    frames = make_frames(1)
    changes: list[dict[str, Any]] = [
        {},
        *({"seed": 1}, {"epoch": 1}, {"video_id": "video02"}, {"video_id": "été"}, {"start": 500}),
        *({"seed": 1, "epoch": 1}, {"seed": 11, "epoch": 0}, {"seed": 1, "start": 1}),
    ]
    pictures = [augment(frames, **change)[0:1] for change in changes]
    for k, picture in enumerate(pictures):
        torch.rand(3)
        assert torch.equal(augment(frames, **changes[k])[0:1], picture)
        assert not any(torch.equal(picture, other) for other in pictures[:k])


def test_about_half_of_the_clips_are_flipped() -> None:
    frames = make_frames(1)
    flips = [not torch.equal(augment(frames, Augmentation(flip=0.5), start=k)[0:1], frames) for k in range(200)]
    assert 70 < sum(flips) < 130
    assert torch.equal(augment(frames, Augmentation(flip=1.0))[0:1], frames.flip(-1))


def test_the_random_state_is_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    augment(make_frames())[0:5]
    assert torch.equal(torch.rand(1), expected)


def test_nothing_varied_is_the_source_itself() -> None:
    frames = make_frames()
    assert augment(frames, Augmentation()) is frames
    assert not Augmentation().changes_anything


def test_no_frames() -> None:
    assert len(augment(make_frames(0))) == 0
    assert augment(make_frames())[7:7].shape == (0, 3, 12, 16)


def test_the_replay_sees_the_pixels_of_the_first_run() -> None:
    """Gradients of the encoder in chunks of 4 equal those of one undivided run over the augmented clip."""
    source = augment(make_frames())
    cnn = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(2 * 10 * 14, 3)).double()
    with check_replay():
        (features,) = ChunkedEncoder(cnn, 4, transform=lambda rows: rows.double() / 255)([source])
    features.square().sum().backward()
    found = [p.grad.clone() for p in cnn.parameters()]
    cnn.zero_grad()
    cnn(source[0:20].double() / 255).square().sum().backward()
    for one, p in zip(found, cnn.parameters(), strict=True):
        torch.testing.assert_close(one, p.grad, rtol=1e-12, atol=1e-12)  # sums in another order


@given(name=st.sampled_from(list(vars(Augmentation()))), value=st.sampled_from([-0.1, 1.1, 200.0, float("nan")]))
def test_impossible_widths(name: str, value: float) -> None:
    if name == "rotation_degrees" and value == 1.1:
        assert Augmentation(rotation_degrees=value).changes_anything
        return
    with pytest.raises(DataError, match=f"{name} is {value}; expected 0"):
        Augmentation(**{name: value})
