"""Random numbers from anywhere: a replay draws what its first run drew, and what cannot be known is noticed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from reference import hold_against
from torch import Tensor, nn

from seqckpt import Checkpointed, ChunkedEncoder, SegmentedRNN, check_replay, checkpoint_sequential, checkpointed_scan
from seqckpt.core import Keep
from seqckpt.core.generators import generators_of
from seqckpt.core.random_states import RandomStates
from seqckpt.errors import ReplayError

GLOBAL = np.random.default_rng(0)


def from_a_global() -> float:
    return float(GLOBAL.random())


class Drawing(nn.Module):
    """Multiplies by a number that it draws, and skips itself now and then, as stochastic depth does."""

    def __init__(self, draw: Callable[[], float], **held: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4).double()
        self.draw = draw
        self.__dict__.update(held)

    def forward(self, x: Tensor) -> Tensor:
        return x if self.draw() < 0.2 else x + self.draw() * torch.tanh(self.linear(x))


class Holder:
    """Augmentation as a plain object with a generator of its own."""

    def __init__(self) -> None:
        self.generator = np.random.RandomState(3)

    def __call__(self) -> float:
        return float(self.generator.rand())


def in_a_closure() -> Callable[[], float]:
    generator = random.Random(5)
    return lambda: generator.random()


def with_torch(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))


def with_held(kind: Any) -> Drawing:
    module = Drawing(lambda: 0.0, generators={"own": [kind]})
    module.draw = lambda: float(module.generators["own"][0].random())
    return module


SOURCES: dict[str, Callable[[], Drawing]] = {
    "torch": lambda: Drawing(lambda: float(torch.rand(()))),
    "Python's random": lambda: Drawing(random.random),
    "numpy's global generator": lambda: Drawing(lambda: float(np.random.rand())),  # noqa: NPY002 - the point
    "several": lambda: Drawing(lambda: (random.random() + float(torch.rand(()))) / 2),
    "a torch.Generator": lambda: Drawing(partial(with_torch, torch.Generator().manual_seed(1))),
    "a random.Random in a closure": lambda: Drawing(in_a_closure()),
    "a generator held in a dict": lambda: with_held(random.Random(1)),
    "numpy's Generator held in a list": lambda: with_held(np.random.default_rng(1)),
    "an object with a RandomState": lambda: Drawing(Holder()),
    "a global of the file": lambda: Drawing(from_a_global),
}

X = torch.randn(2, 7, 4, dtype=torch.float64)


def plain_rows(module: nn.Module, x: Tensor, sizes: list[int]) -> Tensor:
    return torch.cat([module(part) for part in x.flatten(0, 1).split(sizes)])


WAYS: dict[str, tuple[Callable[[Any, Tensor], Tensor], Callable[[Any, Tensor], Tensor]]] = {
    "Checkpointed": (lambda m, x: m(m(x)), lambda m, x: Checkpointed(m)(Checkpointed(m)(x))),
    "nested": (lambda m, x: m(m(x)), lambda m, x: Checkpointed(nn.Sequential(Checkpointed(m), m))(x)),
    "checkpoint_sequential": (lambda m, x: m(m(x)), lambda m, x: checkpoint_sequential([m, m], x, segments=2)),
    "ChunkedEncoder": (
        lambda m, x: plain_rows(m, x, [3, 4, 3, 4]),
        lambda m, x: ChunkedEncoder(m, 4)(x).flatten(0, 1),
    ),
    "a transform": (
        lambda m, x: torch.cat([m.linear(m(part)) for part in x.flatten(0, 1).split([3, 4, 3, 4])]),
        lambda m, x: ChunkedEncoder(m.linear, 4, transform=m)(x).flatten(0, 1),
    ),
    "checkpointed_scan": (
        lambda m, x: torch.cat([m(part) for part in x.split([3, 3, 1], 1)], 1),
        lambda m, x: checkpointed_scan(lambda x, s: (m(x), s), x, None, 3)[0],
    ),
    "nested levels": (
        lambda m, x: torch.cat([m(part) for part in x.split([2, 2, 2, 1], 1)], 1),
        lambda m, x: checkpointed_scan(lambda x, s: (m(x), s), x, None, [4, 2])[0],
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_replay_draws_what_its_first_run_drew(source: str, way: str) -> None:
    plain, run = WAYS[way]
    module = SOURCES[source]()
    states = RandomStates([], [module])
    before = states.read()
    afterwards = []

    def from_the_same_state(run: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
        def call(_: nn.Module, x: Tensor) -> Tensor:
            states.write(before)
            return run(module, x)

        return call

    runs = []
    for function in (plain, run):
        module.zero_grad()
        states.write(before)
        x = X.clone().requires_grad_()
        y = function(module, x)
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
        afterwards.append(states.read())
        runs.append([y.detach(), x.grad, *(p.grad for p in module.parameters())])
    exactly = 1e-12 if way == "nested levels" else 0  # whose sums of gradients are by levels, too
    for a, b in zip(*runs, strict=True):
        assert a is not None
        torch.testing.assert_close(a, b, rtol=exactly, atol=exactly)
    assert not states.differ(*afterwards)
    assert states.differ(before, afterwards[0])


@pytest.mark.parametrize("keep", [Keep(depth=1), Keep(depth=1.5, chunks=2)], ids=str)
@pytest.mark.parametrize("source", ["Python's random", "numpy's global generator", "a global of the file"])
def test_kept_stages_draw_once(source: str, keep: Keep) -> None:
    module = nn.Sequential(SOURCES[source](), SOURCES[source](), nn.Linear(4, 2).double())
    states = RandomStates([], [module])
    before = states.read()

    def from_the_same_state(run: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
        def call(m: nn.Module, x: Tensor) -> Tensor:
            states.write(before)
            return run(m, x)

        return call

    hold_against(
        from_the_same_state(lambda m, x: plain_rows(m, x, [3, 4, 3, 4])),
        from_the_same_state(lambda m, x: ChunkedEncoder(m, 4, keep=keep)(x).flatten(0, 1)),
        module,
        [X],
    )


def numbers_of_a_frame_at_rest() -> Iterator[float]:
    generator = random.Random(0)
    while True:
        yield generator.random()


UNKNOWN: dict[str, Callable[[], Callable[[], float]]] = {
    "a generator in a frame at rest": lambda: numbers_of_a_frame_at_rest().__next__,
    "the system's": lambda: random.SystemRandom().random,
    "the time of day": lambda: lambda: time.perf_counter_ns() % 997 / 997,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", UNKNOWN)
def test_what_cannot_be_set_back_is_noticed_in_every_run(source: str, way: str) -> None:
    draw = UNKNOWN[source]()

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * (0.5 + draw())

    module = Scaled()
    loss = WAYS[way][1](module, X).sum()
    with pytest.raises(ReplayError, match=r"does not repeat its first run.*generator of random numbers"):
        loss.backward()
    with check_replay(False):
        WAYS[way][1](module, X).sum().backward()


def test_a_draw_that_touches_one_row_only_is_noticed() -> None:
    rows = iter(range(10**6))

    class OneRow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 300)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            return torch.where(torch.arange(len(x))[:, None] == next(rows) % len(x), 2 * y, y)

    with pytest.raises(ReplayError, match="does not repeat"):
        ChunkedEncoder(OneRow(), 25)(torch.randn(1, 50, 4)).sum().backward()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_repeat_themselves(value: float) -> None:
    linear = nn.Linear(4, 4)
    x = torch.full((1, 9, 4), value)
    ChunkedEncoder(linear, 3)(x).sum().backward()
    SegmentedRNN(nn.GRU(4, 4, batch_first=True), 3)(x)[0].sum().backward()


def test_generators_that_are_found() -> None:
    module = nn.Sequential(Drawing(random.random), nn.ReLU())
    assert generators_of([module]) == []
    own = random.Random(1), np.random.default_rng(2), np.random.RandomState(3), torch.Generator(), np.random.PCG64(4)
    module[0].rng = {"a": [own[0]], "b": (own[1], {"c": own[2]})}
    module[1].register_forward_hook(partial(lambda generator, *_: None, own[3]))
    assert {id(g) for g in generators_of([module])} == {id(g) for g in own[:4]}

    def function(x: Tensor, generator: Any = own[4]) -> Tensor:
        return x * generator.random_raw()

    assert generators_of([function]) == [own[4]]


def test_states_that_were_not_drawn_from_are_equal() -> None:
    states = RandomStates([], [lambda: GLOBAL.random()])
    before = states.read()
    assert not states.differ(before, states.read())
    for draw in (lambda: torch.rand(()), random.random, np.random.rand, GLOBAL.random):
        states.write(before)
        number = draw()
        assert states.differ(before, states.read())
        states.write(before)
        assert draw() == number
