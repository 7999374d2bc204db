"""Frames become normalised floats, and stay as they were themselves."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import v2

from seqckpt.errors import UsageError
from seqckpt.models import FrameTransform
from seqckpt.models.transform import IMAGENET_MEAN, IMAGENET_STD


def test_equals_torchvision() -> None:
    frames = torch.randint(0, 256, (7, 3, 5, 6), dtype=torch.uint8)
    before = frames.clone()
    reference = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)])
    result = FrameTransform()(frames)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, reference(frames), rtol=1e-5, atol=1e-6)  # one multiplication instead of two
    assert torch.equal(frames, before)


def test_rows_are_independent_of_the_chunk() -> None:
    frames = torch.randint(0, 256, (7, 3, 5, 6), dtype=torch.uint8)
    transform = FrameTransform()
    assert torch.equal(torch.cat([transform(frames[:3]), transform(frames[3:])]), transform(frames))


def test_follows_the_dtype_of_the_module_and_adds_no_keys() -> None:
    transform = FrameTransform().double()
    assert transform(torch.zeros(1, 3, 2, 2, dtype=torch.uint8)).dtype == torch.float64
    assert not transform.state_dict()
    assert repr(FrameTransform([0.5], [0.25])) == "FrameTransform(mean=[0.5], std=[0.25])"


def test_refuses_what_was_not_decoded() -> None:
    with pytest.raises(UsageError, match=r"torch.float32: expected torch.uint8"):
        FrameTransform()(torch.zeros(1, 3, 2, 2))
    with pytest.raises(UsageError, match=r"shape \(1, 2, 2, 3\): expected \(..., 3, height, width\)"):
        FrameTransform()(torch.zeros(1, 2, 2, 3, dtype=torch.uint8))
    with pytest.raises(UsageError, match="one value per channel"):
        FrameTransform([0.5], [0.5, 0.5])
    with pytest.raises(UsageError, match="above 0"):
        FrameTransform([0.5], [0.0])
