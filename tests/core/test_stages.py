"""Encoders cut in stages: nested rows, and forwards traced by torch.fx; cut or not, the same numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from measures import count_calls
from torch import Tensor, nn
from torch.nn import functional as F

from seqckpt.core import ChunkedEncoder, Keep
from seqckpt.core.stages import find_stages


class Residual(nn.Module):
    """A network as people write it: a forward that calls layers, blocks, functions and methods."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(Block(), Block())
        self.shift = nn.Parameter(torch.randn(4, 1, 1))
        self.register_buffer("scale", torch.tensor(1.5))
        self.conv2 = nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor, unused: Any = None) -> Tensor:
        x = self.relu(self.norm(self.conv1(x)))
        x = self.layer1(x) + self.shift
        x = F.dropout(self.conv2(x), 0.4, training=self.training)
        return (x * self.scale).mean((2, 3)).view(x.size(0), -1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.conv(x)) if x.sum() > -1e9 else x  # depends on values: not to be looked into


class Wrapper(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


class Dense(nn.Module):
    """Each layer sees all before it: several values cross nearly everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 2, 1), nn.Conv2d(5, 2, 1), nn.Conv2d(7, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = torch.cat([x, self.a(x)], 1)
        x = torch.cat([x, self.b(x)], 1)
        y = self.c(x)
        return {"mean": y.mean((2, 3)), "largest": y.amax((2, 3))}


ENCODERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "functions and methods": (Residual, 8),
    "a wrapper": (lambda: Wrapper(Wrapper(Residual())), 8),
    "values that cross, several outputs": (Dense, 4),
    "nested rows": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(Block(), nn.Sequential(Block()))), 3),
    "an in-place layer in a row": (
        lambda: nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)), Block()),
        2,
    ),
    "in-place layers between stages": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.ELU(inplace=True)),
        4,
    ),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_there_are_as_many_stages_as_cuts(name: str) -> None:
    make, num_stages = ENCODERS[name]
    assert len(ChunkedEncoder(make(), 4).stages) == num_stages


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("training", [True, False])
def test_every_depth_gives_the_numbers_of_the_whole(name: str, training: bool) -> None:
    make, num_stages = ENCODERS[name]
    encoder = make().double().train(training)
    frames = torch.randn(1, 10, 3, 6, 6, dtype=torch.float64)
    expected = None
    for depth in (*range(num_stages + 1), *(stage + 0.5 for stage in range(num_stages))):
        torch.manual_seed(0)
        features = ChunkedEncoder(encoder, 4, keep=Keep(depth=depth))(frames)
        values = list(features.values()) if isinstance(features, dict) else [features]
        grads = torch.autograd.grad(sum(value.sin().sum() for value in values), list(encoder.parameters()))
        if expected is None:
            expected = (values, grads)
        assert all(torch.equal(a, b) for a, b in zip(values, expected[0], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(grads, expected[1], strict=True))


def test_kept_stages_of_a_traced_encoder_run_once() -> None:
    encoder = Residual()
    with count_calls(encoder.conv1) as early, count_calls(encoder.conv2) as late:
        ChunkedEncoder(encoder, 4, keep=Keep(depth=5))(torch.randn(1, 12, 3, 6, 6)).sum().backward()
    assert (len(early), len(late)) == (5, 3)


def test_a_fraction_of_a_stage_is_kept_for_the_last_chunks() -> None:
    """12 frames in chunks of 2: the last is kept whole, of the 5 others the last 2 keep conv2 as well."""
    encoder = Residual()
    with count_calls(encoder.layer1[1]) as early, count_calls(encoder.conv2) as late:
        ChunkedEncoder(encoder, 2, keep=Keep(depth=2.4))(torch.randn(1, 12, 3, 6, 6)).sum().backward()
    assert (len(early), len(late)) == (11, 9)


def test_a_frozen_front_of_a_traced_encoder_runs_once() -> None:
    encoder = Residual()
    encoder.conv1.requires_grad_(False)
    with count_calls(encoder.conv1) as frozen, count_calls(encoder.layer1[1]) as forgotten:
        ChunkedEncoder(encoder, 4, keep=Keep(depth=2))(torch.randn(1, 12, 3, 6, 6)).sum().backward()
    assert (len(frozen), len(forgotten)) == (3, 5)
    assert encoder.conv1.weight.grad is None
    assert encoder.layer1[0].conv.weight.grad is not None


class Counting(Residual):
    """Its forward makes a tensor, which torch.fx would write into the encoder."""

    def forward(self, x: Tensor, unused: Any = None) -> Tensor:
        return super().forward(x) + torch.ones(4)


@pytest.mark.parametrize("kind", ["hook", "values", "constant", "compiled"])
def test_what_cannot_be_cut_stays_whole(kind: str) -> None:
    encoder: nn.Module = {"values": Block, "constant": Counting}.get(kind, Residual)()
    if kind == "hook":
        encoder.register_forward_hook(lambda module, args, output: output * 2)
    if kind == "compiled":
        encoder.compile(backend="eager")
    attributes = set(vars(encoder))
    assert find_stages(encoder, trace=True) == [encoder]
    assert set(vars(encoder)) == attributes


def test_hooks_inside_are_run() -> None:
    """A row with a hook is one stage, and hooks on what a stage is made of fire as ever."""
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(Block(), Block()))
    calls: list[str] = []
    encoder[1].register_forward_hook(lambda *_: calls.append("row"))
    encoder[1][0].register_forward_hook(lambda *_: calls.append("block"))
    assert len(find_stages(encoder)) == 2
    ChunkedEncoder(encoder, 4, keep=Keep(depth=1))(torch.randn(1, 4, 3, 6, 6)).sum().backward()
    assert calls == ["block", "row"]


def test_modules_put_in_later_are_used() -> None:
    encoder = Residual().eval()
    chunked = ChunkedEncoder(encoder, 4, keep=Keep(depth=3))
    encoder.conv2 = nn.Conv2d(4, 4, 1)
    frames = torch.randn(1, 4, 3, 6, 6)
    assert torch.equal(chunked(frames), encoder(frames[0])[None])


class Beside(Residual):
    """A forward that does more than to call: each way leaves the numbers of the whole only where it is not cut."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.log = way, []
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, unused: Any = None) -> Tensor:
        if self.way == "no_grad":
            with torch.no_grad():
                x = self.conv1(x)
        elif self.way == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = self.conv1(x).float()
        else:
            x = self.conv1(x)
        if self.way == "attribute":
            self.last = x
        if self.way == "list":
            self.log.append(x)
        if self.way == "count":
            self.count += 1
        if self.way == "torch random" and torch.rand(()) < 0.5:
            x = x * 2
        if self.way == "python random":
            x = x * random.random()
        return self.conv2(self.layer1(x)).mean((2, 3))


@pytest.mark.parametrize("way", ["no_grad", "autocast", "attribute", "list", "count", "torch random", "python random"])
def test_what_a_graph_would_leave_out_forbids_cuts(way: str) -> None:
    encoder = Beside(way)
    assert len(find_stages(Beside("nothing"), trace=True)) > 3
    states, attributes = (torch.get_rng_state(), random.getstate()), dict(vars(encoder))
    assert find_stages(encoder, trace=True) == [encoder]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert vars(encoder) == attributes
    assert (encoder.log, encoder.count) == ([], 0)
