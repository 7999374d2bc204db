"""What a rank does for the others' sake leaves no trace in its model."""

from __future__ import annotations

import torch
from torch import nn

from seqckpt.training.parallel_model import without_statistics


def test_batch_norm_takes_one_value_per_channel_and_keeps_its_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.BatchNorm2d(4))
    model[3].eval()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with without_statistics(model):
        model(torch.rand(1, 3, 3, 3)).sum().backward()
        assert model[2].training
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert model[1].training
    assert not model[3].training
