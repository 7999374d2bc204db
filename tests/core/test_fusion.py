"""Fused convolutions: the numbers of the layers one by one, in less memory; and what is left alone.

float64 throughout, to rounding (1e-12 of the largest entry), since weights are scaled before or after the sum.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from measures import count_calls, saved_bytes
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from seqckpt.core import ChunkedEncoder, Keep, Schedule, fused_layers
from seqckpt.core.stages import fused_stages
from seqckpt.errors import ReplayError


def frozen(norm: nn.Module) -> nn.Module:
    """With statistics, scale and shift that do something."""
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    if norm.weight is not None:
        nn.init.uniform_(norm.weight, -1, 1.5)
        nn.init.uniform_(norm.bias, -1, 1)
    return norm.eval()


class Block(nn.Module):
    """A residual block as torchvision writes it."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1, *, bias: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=bias)
        self.bn1 = frozen(nn.BatchNorm2d(channels))
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=bias)
        self.bn2 = frozen(nn.BatchNorm2d(channels))
        self.down = None
        if stride > 1:
            self.down = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=bias), frozen(nn.BatchNorm2d(channels))
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


class Written(nn.Module):
    """The same layers in other spellings, and some that cannot be fused."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, 2, 2, dilation=2)
        self.norm = frozen(nn.BatchNorm2d(6, affine=False))
        self.grouped = nn.Conv2d(6, 6, 3, padding=1, groups=3)
        self.plain = nn.Conv2d(6, 6, 1)
        self.circular = nn.Conv2d(6, 6, 3, padding=1, padding_mode="circular")
        self.normed = weight_norm(nn.Conv2d(6, 6, 1))
        self.shift = nn.Parameter(torch.randn(6, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = torch.add(x, self.grouped(x)).relu()
        y = self.plain(x)
        x = self.circular(F.dropout(y, 0.3)).relu_() + self.normed(y)
        x = F.relu(self.plain(x) + self.shift)
        return x.mean((2, 3))


class OneDimensional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, 4, 3), frozen(nn.BatchNorm1d(4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = torch.relu(self.norm(self.conv(x.flatten(2))))
        return {"mean": y.mean(2), "all": y}


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 7, 2, 3, bias=False),
        frozen(nn.BatchNorm2d(4)),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Sequential(Block(4, 4), Block(4, 8, 2)),
        Block(8, 8, bias=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "a residual network": resnet,
    "other spellings": Written,
    "one dimension": OneDimensional,
}


def run(encoder: ChunkedEncoder, frames: Tensor) -> tuple[Any, dict[str, Tensor | None], Tensor]:
    """Features, gradients of parameters, gradient of frames."""
    torch.manual_seed(5)
    encoder.zero_grad()
    frames = frames.clone().requires_grad_()
    features = encoder(frames)
    leaves = list(features.values()) if isinstance(features, dict) else [features]
    sum((leaf.sin() * torch.linspace(-1, 1, leaf.shape[-1], dtype=leaf.dtype)).sum() for leaf in leaves).backward()
    return [leaf.detach() for leaf in leaves], {n: p.grad for n, p in encoder.named_parameters()}, frames.grad


def assert_close(encoder: ChunkedEncoder, twin: ChunkedEncoder, frames: Tensor, tolerance: float = 1e-12) -> None:
    (features, grads, grad), (expected, expected_grads, expected_grad) = run(encoder, frames), run(twin, frames)
    largest = max(float(g.abs().max()) for g in expected_grads.values() if g is not None)
    for a, b in zip(features, expected, strict=True):
        assert float((a - b).abs().max()) <= tolerance * float(b.abs().max())
    assert grads.keys() == expected_grads.keys()
    for name, b in expected_grads.items():
        assert (grads[name] is None) == (b is None), name
        assert b is None or float((grads[name] - b).abs().max()) <= tolerance * largest, name
    assert float((grad - expected_grad).abs().max()) <= tolerance * float(expected_grad.abs().max())


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("chunk_size", [3, 10])
def test_features_and_gradients_are_those_of_the_layers_one_by_one(name: str, chunk_size: int) -> None:
    torch.manual_seed(0)
    encoder = ENCODERS[name]().double()
    frames = torch.randn(2, 5, 3, 17, 16, dtype=torch.float64)
    twin = ChunkedEncoder(encoder, chunk_size)
    num_stages = len(ChunkedEncoder(encoder, chunk_size, fuse=True).stages)
    for depth in (0, 1, num_stages // 2 + 0.5, num_stages):
        assert_close(ChunkedEncoder(encoder, chunk_size, fuse=True, keep=Keep(depth=depth)), twin, frames)


def test_what_is_fused_is_a_row_of_blocks() -> None:
    encoder = ChunkedEncoder(resnet(), 4, fuse=True)
    stages = fused_stages(encoder.encoder)
    assert [len(list(stage.fused())) for stage in stages] == [1, 0, 2, 3, 2, 0, 0]
    assert sum(len(list(stage.parameters())) for stage in stages) == len(list(encoder.parameters()))
    assert sum(len(list(stage.fused())) for stage in fused_stages(Written())) == 3


@pytest.mark.parametrize("copied", [0, 2**18], ids=["results scaled", "weights scaled"])
def test_weights_may_be_scaled_or_what_comes_of_them(copied: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layers, "_MOST_COPIED", copied)
    torch.manual_seed(1)
    encoder = resnet().double()
    frames = torch.randn(1, 7, 3, 20, 22, dtype=torch.float64)
    assert_close(ChunkedEncoder(encoder, 3, fuse=True), ChunkedEncoder(encoder, 3), frames)


@settings(max_examples=30)
@given(
    size=st.tuples(st.integers(3, 7), st.integers(3, 7)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 1)),
)
def test_a_weights_gradient_may_be_one_matrix_product(
    size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> None:
    conv = nn.Conv2d(3, 5, kernel, stride, padding, dilation, bias=False).double()
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    if any(n + 2 * p <= d * (k - 1) for n, p, d, k in zip(size, padding, dilation, kernel, strict=True)):
        return
    y = conv(x)
    grad = torch.randn_like(y)
    y.backward(grad)
    made = fused_layers._weight_gradient(grad, x, conv.weight, (stride, padding, dilation, False, [0, 0], 1))
    torch.testing.assert_close(made, conv.weight.grad, rtol=0, atol=1e-12 * float(grad.abs().sum()))


def test_single_precision_in_the_layouts_of_the_processor() -> None:
    """Deep and shallow pictures, in the layouts of Note 2, and a weight of more elements than are copied."""
    torch.manual_seed(2)
    encoder = nn.Sequential(Block(3, 32, 2), Block(32, 192, 2), Block(192, 192, 2), nn.Flatten())
    frames = torch.randn(1, 6, 3, 30, 30)
    assert max(p.numel() for p in encoder.parameters()) > 2**18
    assert_close(ChunkedEncoder(encoder, 4, fuse=True), ChunkedEncoder(encoder, 4), frames, 2e-5)


@pytest.mark.parametrize("num_frozen", [2, 5, 8])
@pytest.mark.parametrize("keep", [Keep(), Keep(frozen=False), Keep(depth=2)])
def test_frozen_layers_in_front_and_frozen_scales(num_frozen: int, keep: Keep) -> None:
    torch.manual_seed(3)
    encoder = resnet().double()
    encoder[:num_frozen].requires_grad_(False)
    for layer in encoder.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.weight.requires_grad_(False)
    frames = torch.randn(1, 7, 3, 16, 16, dtype=torch.float64)
    fused, twin = ChunkedEncoder(encoder, 3, fuse=True, keep=keep), ChunkedEncoder(encoder, 3)
    if num_frozen == 8:
        assert not fused(frames).requires_grad
        torch.testing.assert_close(fused(frames), twin(frames), rtol=1e-12, atol=1e-12)
        return
    both = []
    for one in (fused, twin):
        one.zero_grad()
        one(frames).sin().sum().backward()
        both.append([p.grad for p in encoder.parameters() if p.requires_grad])
    grads, expected = both
    largest = max(float(g.abs().max()) for g in grads)
    assert all(float((a - b).abs().max()) <= 1e-12 * largest for a, b in zip(grads, expected, strict=True))


def test_less_is_saved() -> None:
    encoder = resnet()
    frames = torch.randn(1, 8, 3, 64, 64)
    weights = list(encoder.parameters())
    own = frames.numel() * frames.element_size()  # the first convolution's input, in any case
    plain = saved_bytes(lambda: ChunkedEncoder(encoder, 8)(frames), *weights) - own
    assert saved_bytes(lambda: ChunkedEncoder(encoder, 8, fuse=True)(frames), *weights) - own < 0.6 * plain


def test_chunks_are_replayed_once_and_the_state_is_the_encoders() -> None:
    encoder = resnet()
    fused = ChunkedEncoder(encoder, 2, fuse=True)
    assert fused.state_dict().keys() == encoder.state_dict().keys()
    assert "fuse=True" in repr(fused)
    Schedule(chunk_size=3, segment_length=5, keep=Keep(depth=2)).apply(fused)
    assert fused.fuse
    with count_calls(encoder[6]) as pools:
        fused(torch.randn(1, 9, 3, 16, 16)).sum().backward()
    assert pools.rows == [3, 3, 3]  # kept: not run again
    for twin in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        torch.testing.assert_close(twin(torch.ones(1, 4, 3, 16, 16)), fused(torch.ones(1, 4, 3, 16, 16)))


def test_under_autocast_each_layer_has_its_own_precision() -> None:
    torch.manual_seed(4)
    encoder = resnet()
    frames = torch.rand(1, 5, 3, 16, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = ChunkedEncoder(encoder, 2)(frames)
        features = ChunkedEncoder(encoder, 2, fuse=True)(frames)
        features.float().sum().backward()
    assert features.dtype == expected.dtype
    torch.testing.assert_close(features, expected)
    assert all(p.grad is not None for p in encoder.parameters())


def test_a_weight_changed_before_backward_is_noticed() -> None:
    encoder = resnet()
    features = ChunkedEncoder(encoder, 2, fuse=True)(torch.randn(1, 5, 3, 16, 16))
    with torch.no_grad():
        encoder[0].weight.mul_(2)
    with pytest.raises((ReplayError, RuntimeError), match=r"changed in place|modified by an inplace operation"):
        features.sum().backward()


# ------------------------------------------------------------------- what is left alone


def test_a_value_depended_on_keeps_a_block_whole() -> None:
    class Asks(Block):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum() > -1e9 else x

    torch.manual_seed(6)
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), frozen(nn.BatchNorm2d(4)), Asks(4, 4), Block(4, 4)).double()
    assert [len(list(stage.fused())) for stage in fused_stages(encoder)] == [1, 0, 2]
    frames = torch.randn(1, 5, 3, 8, 8, dtype=torch.float64)
    assert_close(ChunkedEncoder(encoder, 2, fuse=True), ChunkedEncoder(encoder, 2), frames)


def test_hooks_are_still_called() -> None:
    torch.manual_seed(7)
    encoder = resnet().double()
    seen: list[Any] = []
    handle = encoder[1].register_forward_hook(lambda module, args, output: seen.append(len(output)))
    frames = torch.randn(1, 5, 3, 16, 16, dtype=torch.float64)
    assert_close(ChunkedEncoder(encoder, 5, fuse=True), ChunkedEncoder(encoder, 5), frames)
    assert seen == [5, 5]
    handle.remove()


@pytest.mark.parametrize(
    "change",
    [
        lambda encoder: encoder.train(),
        lambda encoder: encoder.register_forward_hook(lambda *_: None),
    ],
    ids=["batch statistics", "hooks"],
)
def test_where_nothing_can_be_fused_the_message_says_why(change: Callable[[nn.Module], Any]) -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), frozen(nn.BatchNorm2d(4)))
    fused = ChunkedEncoder(encoder, 2, fuse=True)
    fused(torch.randn(1, 3, 3, 8, 8))
    change(encoder)
    with pytest.raises(ValueError, match=r"no convolution .* stored statistics .* leave fuse out"):
        fused(torch.randn(1, 3, 3, 8, 8))


def test_a_result_that_is_used_twice_is_not_taken_in() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), frozen(nn.BatchNorm2d(3))

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.conv(x))
            y = torch.relu(y) + y
            x = x * 1
            x.add_(self.conv(y))  # writes into x: stays an addition of its own
            return torch.relu(x)

    torch.manual_seed(8)
    encoder = Twice().double()
    assert sum(len(list(stage.fused())) for stage in fused_stages(encoder)) == 1
    frames = torch.randn(1, 5, 3, 8, 8, dtype=torch.float64)
    assert_close(ChunkedEncoder(encoder, 2, fuse=True), ChunkedEncoder(encoder, 2), frames)


class Poolings(nn.Module):
    """A fused pool whose result a layer behind it writes into, through a view too."""

    def __init__(self, layer: nn.Module, view: bool) -> None:
        super().__init__()
        self.conv, self.relu, self.pool = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2)
        self.layer, self.view, self.linear = layer, view, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv(x)))
        x = self.layer(x.flatten(2)).unflatten(2, x.shape[2:]) if self.view else self.layer(x)
        return self.linear(x.mean((2, 3)))


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.4, inplace=True), nn.ReLU(inplace=True), nn.SiLU(inplace=True), nn.Hardtanh(inplace=True)]
)
def test_layers_that_write_into_what_a_fused_pool_returns(layer: nn.Module, view: bool) -> None:
    torch.manual_seed(0)
    encoder = Poolings(layer, view).double()
    frames = torch.randn(2, 5, 3, 12, 12, dtype=torch.float64)
    assert_close(ChunkedEncoder(encoder, 3, fuse=True), ChunkedEncoder(encoder, 3), frames)


class Broadcasting(nn.Module):
    """Residuals of other shapes and dtypes than the convolution's result, and a number."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv, self.small, self.kind = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 12), kind
        self.mean = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "smaller":
            y = torch.relu(self.conv(x) + self.mean(x.mean((2, 3)))[..., None, None])
        elif self.kind == "larger":
            y = torch.relu(self.small(x) + self.conv(x))
        elif self.kind == "both":
            y = torch.relu(self.small(x) + x.mean(1, keepdim=True))
        elif self.kind == "wider":
            y = torch.relu(self.conv(x) + x.mean(1, keepdim=True).double())
        else:
            y = torch.relu(self.conv(x) + x.size(1))
        return y.mean((2, 3))


@pytest.mark.parametrize("kind", ["smaller", "larger", "both", "wider", "a number"])
def test_residuals_that_broadcast(kind: str) -> None:
    torch.manual_seed(0)
    encoder = Broadcasting(kind)
    encoder = encoder if kind == "wider" else encoder.double()
    frames = torch.randn(2, 3, 3, 12, 12, dtype=torch.float32 if kind == "wider" else torch.float64)
    tolerance = 1e-5 if kind == "wider" else 1e-12
    fused, whole = ChunkedEncoder(encoder, 2, fuse=True), ChunkedEncoder(encoder, 2)
    assert fused(frames).dtype == whole(frames).dtype
    assert_close(fused, whole, frames, tolerance)


@pytest.mark.parametrize(
    "frames",
    [torch.randn(1, 4, 3, 9, 9, dtype=torch.float64), torch.randn(1, 4, 5, 9, 9), torch.zeros(1, 4, 3, 9, 9).byte()],
)
def test_what_the_layers_cannot_take_is_told_in_their_own_words(frames: Tensor) -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
    with pytest.raises(RuntimeError) as plain:
        encoder(frames[0])
    with pytest.raises(RuntimeError) as fused:
        ChunkedEncoder(encoder, 4, fuse=True)(frames)
    assert str(fused.value) == str(plain.value)
