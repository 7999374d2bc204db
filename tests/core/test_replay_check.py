"""The replay check names the first piece that does not repeat itself, by how much, and why."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqckpt import Checkpointed, SegmentedRNN, check_replay, checkpointed_scan
from seqckpt.errors import ReplayError


class Core(nn.Module):
    """A core that multiplies by what `disturbance` says."""

    def __init__(self, disturbance: Callable[[], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.disturbance = disturbance

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return x * self.weight * self.disturbance(), state


def hidden_numbers() -> Callable[[], float]:
    """Numbers from a generator that nothing outside can see: it lives in a frame that is at rest."""

    def draw() -> Iterator[float]:
        generator = random.Random(0)
        while True:
            yield generator.random()

    return draw().__next__


def test_cause_is_named() -> None:
    rnn = SegmentedRNN(Core(hidden_numbers()), 2, check_replay=True)
    y, _ = rnn(torch.randn(1, 8, 3), None)
    with pytest.raises(ReplayError, match="Two replays in a row differ too: a random generator of its own"):
        y.sum().backward()


def test_something_that_changed_in_between() -> None:
    """A switch set between forward and backward: replays agree with each other, and not with the first run."""
    switch = {"factor": 1.0}
    rnn = SegmentedRNN(Core(lambda: switch["factor"]), 2, check_replay=True)
    y, _ = rnn(torch.randn(1, 8, 3), None)
    switch["factor"] = 1.5
    with pytest.raises(ReplayError, match="Replays agree with each other, so something changed in between"):
        y.sum().backward()


def test_attribute_that_counts_up() -> None:
    """A warm-up that ends: the attribute is another in the replay. (One that never rests differs between any two
    replays as well, and looks like a generator.)"""

    class WarmsUp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.calls = nn.Parameter(torch.ones(())), 0

        def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
            self.calls += 1
            return x * self.weight * min(self.calls, 3), state

    y, _ = SegmentedRNN(WarmsUp(), 2, check_replay=True)(torch.randn(1, 8, 3), None)
    with pytest.raises(ReplayError, match="an attribute that it counts up"):
        y.sum().backward()


def test_parameters_changed_behind_the_version_counter() -> None:
    core = Core(lambda: 1)
    y, _ = SegmentedRNN(core, 2, check_replay=True)(torch.randn(1, 8, 3), None)
    core.weight.data += 1
    with pytest.raises(ReplayError, match="parameters were changed between forward and backward: call backward before"):
        y.sum().backward()


def test_segment_and_size_of_the_difference_are_named() -> None:
    values = iter([1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0])  # right in the last segment but one, wrong in the second
    rnn = SegmentedRNN(Core(lambda: next(values)), 2, check_replay=True)
    y, _ = rnn(torch.ones(1, 8, 3), None)
    with pytest.raises(ReplayError, match=r"replay of segment \d of 4 \(rows \d to \d\) .*differs by up to 2 "):
        y.sum().backward()


def test_context_manager() -> None:
    module = Checkpointed(Core(hidden_numbers()))
    with check_replay(False):
        module(torch.randn(2, 3), None)[0].sum().backward()  # wrong, and unnoticed
    with check_replay():
        y, _ = module(torch.randn(2, 3), None)
    with pytest.raises(ReplayError, match=r"Core 1 of 1 does not repeat its first run: result 0 differs by up to"):
        y.sum().backward()
    y, _ = module(torch.randn(2, 3), None)
    with pytest.raises(ReplayError, match=r"Core 1 of 1 does not repeat its first run: a weighted mean"):
        y.sum().backward()


def test_argument_of_each_part() -> None:
    x = torch.randn(1, 8, 3, requires_grad=True)
    with pytest.raises(ReplayError, match="does not repeat"):
        Checkpointed(Core(hidden_numbers()), check_replay=True)(x, None)[0].sum().backward()
    with pytest.raises(ReplayError, match="does not repeat"):
        checkpointed_scan(Core(hidden_numbers()), x, None, 3, check_replay=True)[0].sum().backward()


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"dropout": 0.5}])
@pytest.mark.parametrize("segment_length", [3, [6, 2]])
def test_silent_where_all_is_well(options: dict[str, Any], segment_length: Any) -> None:
    rnn = SegmentedRNN(nn.LSTM(3, 4, 2, **options), segment_length, check_replay=True)
    hidden, state = rnn(torch.randn(14, 2, 3))
    (hidden.sum() + state[0].sum()).backward()


def test_silent_for_modules_with_buffers_and_dropout() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4))
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    with check_replay():
        for part in (module, spectral):
            Checkpointed(part)(torch.randn(5, 4)).sum().backward()


def test_values_that_are_not_numbers_are_equal_to_themselves() -> None:
    class Undefined(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x.sum() * float("nan"), x.sum() * float("inf"), x.sum()])

    Checkpointed(Undefined(), check_replay=True)(torch.ones(3, requires_grad=True)).sum().backward()


def test_gradients_are_the_same_with_the_check() -> None:
    grads = []
    core = nn.LSTM(3, 4, 2, dropout=0.5)
    for check in (False, True):
        core.zero_grad()
        torch.manual_seed(1)
        SegmentedRNN(core, 3, check_replay=check)(torch.ones(11, 2, 3))[0].square().sum().backward()
        grads.append([p.grad for p in core.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
