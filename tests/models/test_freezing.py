"""Frozen stages stay as they are, whatever training does, and cost nothing in backward."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from seqckpt.core import ChunkedEncoder
from seqckpt.errors import UsageError
from seqckpt.models import apply_batch_norm_policy, build_encoder, freeze_until


def test_stages_up_to_the_named_one_are_frozen() -> None:
    encoder = build_encoder("resnet18")
    freeze_until(encoder, "layer2")
    trained = {name.split(".")[0] for name, p in encoder.named_parameters() if p.requires_grad}
    assert trained == {"layer3", "layer4"}


def test_all_freezes_the_whole_encoder() -> None:
    encoder = build_encoder("small")
    freeze_until(encoder, "all")
    assert not any(parameter.requires_grad for parameter in encoder.parameters())


def test_names_with_dots_are_those_of_the_network() -> None:
    encoder = build_encoder("mobilenet_v3_small")
    freeze_until(encoder, "features.3")
    trained = [any(p.requires_grad for p in stage.parameters()) for stage in encoder]
    assert trained[:6] == [False, False, False, False, True, True]
    with pytest.raises(UsageError, match=r"no stage 'layer9': expected all, or one of features_0, features_1"):
        freeze_until(encoder, "layer9")


def test_statistics_of_frozen_stages_do_not_move() -> None:
    """Case 38: model.train() at the start of each epoch does not wake them, others go on."""
    encoder = nn.Sequential()
    encoder.add_module("first", nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    encoder.add_module("norm", nn.BatchNorm2d(4))
    encoder.add_module("second", nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Flatten()))
    freeze_until(encoder, "norm")
    before = copy.deepcopy(encoder.state_dict())
    for _ in range(2):
        encoder.train()
        encoder(torch.randn(5, 3, 8, 8)).sum().backward()
    after = encoder.state_dict()
    changed = {key for key, value in after.items() if not torch.equal(value, before[key])}
    assert changed == {f"second.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert isinstance(encoder.norm, nn.Module)
    assert apply_batch_norm_policy(encoder, "group") is encoder
    assert torch.equal(encoder.state_dict()["norm.running_mean"], before["norm.running_mean"])


def test_frozen_stages_run_once_per_chunk() -> None:
    """Cases 23, 24."""
    encoder = build_encoder("small")
    names = [name for name, _ in encoder.named_children()]
    freeze_until(encoder, names[0])
    calls = dict.fromkeys(names, 0)
    for name, stage in encoder.named_children():
        stage.register_forward_hook(lambda *unused, name=name: calls.update({name: calls[name] + 1}))
    chunked = ChunkedEncoder(encoder, 5)
    chunked(torch.rand(1, 20, 3, 32, 32)).sum().backward()
    assert calls[names[0]] == 4
    assert calls[names[1]] == 4 + 3  # the last chunk's graph is kept
    assert all(p.grad is None for p in encoder.get_submodule(names[0]).parameters())
    assert all(p.grad is not None for p in encoder.get_submodule(names[1]).parameters())
