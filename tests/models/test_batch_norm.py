"""Batch norm policies: frozen never moves, group treats each frame by itself, chunk warns."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn

from seqckpt.errors import UsageError
from seqckpt.models import FrozenBatchNorm, apply_batch_norm_policy, build_encoder, find_batch_norm


def make_encoder() -> nn.Sequential:
    """A conv net with batch norm whose statistics and affine weights are not those of a fresh one."""
    encoder = nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(3, 8, 3, stride=2, bias=False),
            norm=nn.BatchNorm2d(8),
            inner=nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(8)),
        )
    ).double()
    with torch.no_grad():
        for layer in (encoder.norm, encoder.inner[3]):
            layer.weight.uniform_(0.5, 2)
            layer.bias.uniform_(-1, 1)
            layer.running_mean.uniform_(-1, 1)
            layer.running_var.uniform_(0.5, 2)
            layer.num_batches_tracked.fill_(7)
    return encoder


def make_frames(num_frames: int = 10) -> torch.Tensor:
    return torch.randn(num_frames, 3, 9, 9, dtype=torch.float64)


def in_chunks(encoder: nn.Module, frames: torch.Tensor, chunk_size: int) -> torch.Tensor:
    return torch.cat([encoder(chunk) for chunk in frames.split(chunk_size)])


def test_find_names_the_layers() -> None:
    encoder = make_encoder()
    assert find_batch_norm(encoder) == ["norm", "inner.3"]
    assert find_batch_norm(nn.BatchNorm3d(2)) == [""]
    assert find_batch_norm(nn.Sequential(nn.SyncBatchNorm(2), nn.GroupNorm(1, 2), nn.InstanceNorm2d(2))) == ["0"]
    assert find_batch_norm(apply_batch_norm_policy(encoder, "frozen")) == []
    assert len(find_batch_norm(build_encoder("resnet18"))) == 20
    assert find_batch_norm(build_encoder("small")) == []


def test_frozen_equals_eval_mode_bitwise() -> None:
    encoder, frames = make_encoder().eval(), make_frames()
    expected = encoder(frames)
    frozen = apply_batch_norm_policy(copy.deepcopy(encoder), "frozen").train()
    assert torch.equal(frozen(frames), expected)
    assert list(frozen.state_dict()) == list(encoder.state_dict())
    frozen.load_state_dict(encoder.state_dict())
    encoder.load_state_dict(frozen.state_dict())


def test_frozen_statistics_never_move() -> None:
    """Case 38: two epochs, `model.train()` at the start of each."""
    frozen = apply_batch_norm_policy(make_encoder(), "frozen")
    before = {name: buffer.clone() for name, buffer in frozen.named_buffers()}
    assert sorted({name.rpartition(".")[2] for name in before}) == [
        "num_batches_tracked",
        "running_mean",
        "running_var",
    ]
    optimiser = torch.optim.SGD(frozen.parameters(), lr=0.1)
    for _ in range(2):
        frozen.train()
        frozen(make_frames()).square().sum().backward()
        optimiser.step()
    assert all(torch.equal(buffer, before[name]) for name, buffer in frozen.named_buffers())


@pytest.mark.parametrize("train_affine", [True, False])
def test_affine_weights_are_trained_by_choice(train_affine: bool) -> None:
    frozen = apply_batch_norm_policy(make_encoder(), "frozen", train_affine=train_affine)
    frozen(make_frames()).square().sum().backward()
    for layer in (frozen.norm, frozen.inner[3]):
        assert (layer.weight.grad is not None) is train_affine
        assert (layer.bias.grad is not None) is train_affine
    assert frozen.conv.weight.grad is not None


@pytest.mark.parametrize("policy", ["frozen", "group"])
@pytest.mark.parametrize("chunk_size", [1, 3, 4, 10])
def test_frozen_and_group_do_not_depend_on_the_chunk_size(policy: str, chunk_size: int) -> None:
    """Case 35: loss and gradients equal for any chunk size, in training mode."""
    frames = make_frames()
    whole = apply_batch_norm_policy(make_encoder(), policy).train()
    chunked = copy.deepcopy(whole)
    whole(frames).square().sum().backward()
    in_chunks(chunked, frames, chunk_size).square().sum().backward()
    for mine, theirs in zip(chunked.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(
            mine.grad, theirs.grad, rtol=1e-12, atol=1e-12
        )  # another batch size rounds otherwise


def test_chunk_is_another_function_and_says_so() -> None:
    """Case 35, the limit of transparency: training-mode batch norm per chunk differs from the whole clip's."""
    encoder, frames = make_encoder(), make_frames()
    with pytest.warns(
        UserWarning, match=r"2 layers \(norm, inner.3\).*a different function.*changes with the chunk size"
    ):
        assert apply_batch_norm_policy(encoder, "chunk") is encoder
    assert isinstance(encoder.norm, nn.BatchNorm2d)
    twin = copy.deepcopy(encoder)
    assert (in_chunks(encoder.train(), frames, 4) - twin.train()(frames)).abs().max() > 1e-2
    assert torch.equal(in_chunks(encoder.eval(), frames[:8], 8), encoder.eval()(frames[:8]))


def test_chunk_without_batch_norm_says_nothing() -> None:
    apply_batch_norm_policy(build_encoder("small"), "chunk")


def test_group_carries_weights_over() -> None:
    encoder = make_encoder()
    weight, bias = encoder.norm.weight, encoder.norm.bias
    apply_batch_norm_policy(encoder, "group")
    assert isinstance(encoder.norm, nn.GroupNorm)
    assert encoder.norm.weight is weight
    assert encoder.norm.bias is bias
    assert (encoder.norm.num_groups, encoder.norm.eps) == (2, 1e-5)
    assert encoder.inner[3](torch.randn(2, 8, dtype=torch.float64)).shape == (2, 8)


@pytest.mark.parametrize("policy", ["frozen", "group"])
def test_layers_without_affine_weights(policy: str) -> None:
    module = apply_batch_norm_policy(nn.Sequential(nn.BatchNorm2d(8, affine=False)), policy)
    assert module(torch.randn(2, 8, 3, 3)).shape == (2, 8, 3, 3)
    assert list(module.parameters()) == []


def test_synchronised_batch_norm() -> None:
    module = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 8, 1), sync=nn.SyncBatchNorm(8)))
    with pytest.raises(UsageError, match="layer sync is SyncBatchNorm"):
        apply_batch_norm_policy(module, "chunk")
    for policy, kind in (("frozen", FrozenBatchNorm), ("group", nn.GroupNorm)):
        assert isinstance(apply_batch_norm_policy(copy.deepcopy(module), policy).sync, kind)


def test_what_cannot_be_treated_is_refused_before_anything_is_changed() -> None:
    module = nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False))
    with pytest.raises(UsageError, match=r"layer 1 keeps no running statistics"):
        apply_batch_norm_policy(module, "frozen")
    assert isinstance(module[0], nn.BatchNorm2d)
    with pytest.raises(UsageError, match="layer 0 is a lazy batch norm"):
        apply_batch_norm_policy(nn.Sequential(nn.LazyBatchNorm2d()), "group")
    with pytest.raises(UsageError, match="'freeze' is unknown: choose one of frozen, group, chunk"):
        apply_batch_norm_policy(module, "freeze")
    with pytest.raises(UsageError, match="train_affine=False belongs to the batch norm policy 'frozen'"):
        apply_batch_norm_policy(module, "group", train_affine=False)


def test_a_shared_layer_stays_shared_and_a_bare_one_is_returned() -> None:
    norm = nn.BatchNorm2d(4)
    module = apply_batch_norm_policy(nn.ModuleDict({"a": norm, "b": nn.Sequential(norm)}), "frozen")
    assert module["a"] is module["b"][0]
    assert isinstance(apply_batch_norm_policy(norm, "frozen"), FrozenBatchNorm)


@pytest.mark.parametrize("policy", ["frozen", "group"])
def test_treated_encoders_are_copied_and_pickled(policy: str) -> None:
    encoder = apply_batch_norm_policy(make_encoder(), policy)
    frames = make_frames(2)
    for twin in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert torch.equal(twin(frames), encoder(frames))


def test_frozen_resnet_in_half_precision() -> None:
    encoder = apply_batch_norm_policy(build_encoder("resnet18"), "frozen")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert encoder(torch.randn(1, 3, 32, 32)).shape == (1, 512)
