"""What a trace would write into the encoder for good, a number drawn or an array, is found; the encoder stays whole."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from reference import hold_against
from torch import Tensor, nn

from seqckpt import ChunkedEncoder
from seqckpt.core import Keep
from seqckpt.core.random_states import RandomStates
from seqckpt.core.stages import find_stages

HELD = np.random.default_rng(7)
VALUES: dict[str, Callable[[], Any]] = {
    "numpy's global generator": lambda: float(np.random.rand()),  # noqa: NPY002 - the point
    "a generator of numpy's": lambda: float(HELD.random()),
    "Python's random": random.random,
    "torch's generator": lambda: float(torch.rand(())),
    "an array": lambda: np.linspace(0.5, 1.5, 4).reshape(4, 1, 1) * HELD.random(),
    "the time of day": lambda: 1 + time.perf_counter_ns() % 997 / 997,
}


class Traced(nn.Module):
    def __init__(self, value: Callable[[], Any]) -> None:
        super().__init__()
        self.conv, self.norm, self.value = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), value
        self.conv2, self.linear = nn.Conv2d(4, 4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        value = self.value()
        x = torch.relu(self.norm(self.conv(x)))
        x = self.conv2(x) * (torch.from_numpy(value) if isinstance(value, np.ndarray) else value)
        return self.linear(x.mean((2, 3)))


@pytest.mark.parametrize("value", VALUES)
def test_an_encoder_that_draws_is_not_cut(value: str) -> None:
    encoder = Traced(VALUES[value]).double()
    states = RandomStates([], [encoder])
    before = states.read()
    assert len(find_stages(encoder, trace=True)) == 1
    assert not states.differ(before, states.read()) or value == "the time of day"
    with pytest.raises(ValueError, match="cannot be cut in stages"):
        ChunkedEncoder(encoder, 2, keep=Keep(depth=1))


@pytest.mark.parametrize("value", [name for name in VALUES if name != "the time of day"])
def test_a_block_that_draws_stays_as_it_is_among_fused_ones(value: str) -> None:
    """`fuse=True` looks into those blocks that it may look into, and leaves the others whole."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            drawn = VALUES[value]()
            return self.conv(x) * (torch.from_numpy(drawn) if isinstance(drawn, np.ndarray) else drawn)

    norm = nn.BatchNorm2d(4).eval()
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), Block(), pooled).double()
    states = RandomStates([], [encoder])
    before = states.read()

    def from_the_same_state(run: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[nn.Module, Tensor], Tensor]:
        def call(module: nn.Module, x: Tensor) -> Tensor:
            states.write(before)
            torch.manual_seed(1)
            return run(module, x)

        return call

    hold_against(
        from_the_same_state(lambda m, x: torch.cat([m(part) for part in x[0].split(2)])),
        from_the_same_state(lambda m, x: ChunkedEncoder(m, 2, fuse=True)(x)[0]),
        encoder,
        [torch.randn(1, 6, 3, 5, 5, dtype=torch.float64)],
        tolerance=1e-12,
    )


def test_a_constant_that_is_the_same_each_time_does_no_harm() -> None:
    encoder = Traced(lambda: float(np.sqrt(2.0)))
    assert len(find_stages(encoder, trace=True)) > 1


class SeveralResults(nn.Module):
    """Returns values that later calls have used."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pooled = self.norm(self.conv(x)).mean((2, 3))
        y = self.linear(pooled)
        return y, pooled, y.argmax(-1)


@pytest.mark.parametrize("options", [{}, {"fuse": True}, {"keep": Keep(depth=1)}], ids=str)
def test_results_that_later_calls_use(options: dict[str, Any]) -> None:
    hold_against(
        lambda m, x: tuple(torch.cat(parts) for parts in zip(*(m(part) for part in x[0].split(2)), strict=True)),
        lambda m, x: tuple(t[0] for t in ChunkedEncoder(m, 2, **options)(x)),
        SeveralResults().double(),
        [torch.randn(1, 6, 3, 5, 5, dtype=torch.float64)],
        tolerance=1e-12,
    )
