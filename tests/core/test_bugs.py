"""Faults that were found and mended, and traps of the published recipes, each with its story."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import assert_same, cut_scan, hold_against, run_once
from torch import Tensor, nn
from torch.func import functional_call

from seqckpt import Checkpointed, SegmentedRNN


@pytest.mark.parametrize("num_steps", [1, 7])
@pytest.mark.parametrize("segment_length", [3, [6, 2]])
def test_weight_that_the_graph_reaches_and_no_gradient_does(segment_length: int | list[int], num_steps: int) -> None:
    """A loss of c_n alone leaves the projection of the last step without gradient, although the graph knows it; in a
    last segment of one step that is the whole weight. The hook that sums gradients was then called with None and raised
    AttributeError."""
    core = nn.LSTM(3, 4, 1, proj_size=2).double()
    x = torch.randn(num_steps, 2, 3, dtype=torch.float64)
    plain, segmented = (
        run_once(core, run, (x,), loss=lambda results: results[1][1].sum())
        for run in (lambda core, x: core(x), lambda core, x: SegmentedRNN(core, segment_length)(x))
    )
    assert_same(segmented, plain, tolerance=1e-10)
    assert (segmented.gradients["weight_hr_l0"] is None) == (num_steps == 1)


def test_parameter_thawed_between_forward_and_backward() -> None:
    """The plain run has decided in forward that it gets no gradient. The replay found a trainable tensor that the
    first run had not known, and refused."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    module[0].requires_grad_(False)
    y = Checkpointed(module)(torch.randn(5, 4)).sum()
    module[0].requires_grad_(True)
    y.backward()
    assert module[0].weight.grad is None
    assert module[2].weight.grad is not None
    assert module[0].weight.requires_grad


def test_full_length_gradients_of_slices_inside() -> None:
    """Slicing the whole input inside the run function makes one zero-padded gradient of full length per segment.
    Cut outside, no gradient larger than a segment's rows is made on the way to x."""
    sizes: list[int] = []
    core = nn.RNN(3, 4)
    core.register_forward_pre_hook(lambda _, args: args[0].register_hook(lambda grad: sizes.append(len(grad))) and None)
    x = torch.randn(20, 2, 3, requires_grad=True)
    SegmentedRNN(core, 4)(x)[0].sum().backward()
    assert sizes
    assert set(sizes) == {4}


def test_frozen_network_passes_gradients_on_to_its_input() -> None:
    """A trainable encoder below a frozen network."""
    core = nn.GRU(3, 4).requires_grad_(False)
    x = torch.randn(9, 2, 3, requires_grad=True)
    SegmentedRNN(core, 4)(x)[0].sum().backward()
    assert x.grad is not None
    assert all(p.grad is None for p in core.parameters())


class Tracks(nn.Module):
    """Adds a mean that it keeps in a buffer to its input; the buffer is None at first, or not there, or grows."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight, self.kind = nn.Parameter(torch.ones(4)), kind
        if kind != "comes up":
            self.register_buffer("mean", None if kind == "none" else torch.zeros(1, 4))

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        new = x.detach().mean((0, 1))[None]
        if self.kind == "grows":
            self.mean = torch.cat([self.mean, new])
        elif self.kind == "comes up" and "mean" not in self._buffers:
            self.register_buffer("mean", new)
        else:
            self.mean = new if self.mean is None else 0.5 * self.mean + 0.5 * new
        return x * self.weight + self.mean.sum(0), state


@pytest.mark.parametrize("kind", ["none", "comes up", "grows"])
def test_buffers_that_are_none_or_come_up_or_grow(kind: str) -> None:
    """Only buffers that were there before the first run, and of the shape that they had, were put back: a mean that
    starts as None was updated once more by the replay, and the replay saw another one than the first run."""
    x = torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)
    core = Tracks(kind).double()
    hold_against(lambda m, x: cut_scan(m, x, None, [2, 2, 2, 1]), lambda m, x: SegmentedRNN(m, 2)(x), core, (x,))

    def twice(m: Callable[..., Any], x: Tensor) -> Tensor:
        return m(m(x)[0].tanh())[0]

    hold_against(twice, lambda m, x: twice(Checkpointed(m), x), core, (x,), tolerance=1e-12)  # two uses, summed apart


@pytest.mark.parametrize("part", [lambda: SegmentedRNN(nn.RNN(4, 4), 2), lambda: Checkpointed(nn.Linear(4, 4))])
def test_functional_call(part: Callable[[], nn.Module]) -> None:
    """Other weights for the time of one call, as meta-learning and ensembles have them. They were gone when the replay
    came, which then ran with the module's own: in silence, where nothing was to be found by its graph."""
    plain = part().double()
    wrapped, plain = plain, getattr(plain, "core", None) or plain.module
    weights = {name: torch.randn_like(p, requires_grad=True) for name, p in plain.named_parameters()}
    x = torch.randn(7, 2, 4, dtype=torch.float64)
    own = {name.split(".", 1)[1]: p for name, p in wrapped.named_parameters()}
    grads = []
    for module, prefix in ((plain, ""), (wrapped, next(iter(dict(wrapped.named_children()))) + ".")):
        y = functional_call(module, {prefix + name: w for name, w in weights.items()}, (x,))
        (y[0] if isinstance(y, tuple) else y).square().sum().backward()
        grads.append([w.grad for w in weights.values()])
        for w in weights.values():
            w.grad = None
    for a, b in zip(*grads, strict=True):
        assert (a - b).abs().max() < 1e-10 * a.abs().max()  # the undivided network
    assert all(p.grad is None for p in own.values())


def test_parameter_put_in_place_of_another() -> None:
    module = nn.Linear(4, 4)
    before = module.weight
    y = Checkpointed(module)(torch.randn(3, 4)).sum()
    module.weight = nn.Parameter(torch.zeros(4, 4))
    y.backward()
    assert before.grad is not None
    assert module.weight.grad is None
    assert not module.weight.any()


class InPlace(nn.Module):
    """Keeps its state in one tensor, which it writes into."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        state = x.new_zeros(len(x), 4) if state is None else state
        steps = []
        for x_t in x.unbind(1):
            state.mul_(0.9).add_(x_t * self.weight)
            steps.append(state * 2)
        return torch.stack(steps, 1), state


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("levels", [2, [4, 2]])
def test_state_that_is_written_into(levels: int | list[int], with_state: bool) -> None:
    """Whether a function writes into its arguments is learnt from its first call; with a state of None there was
    nothing to learn from, and the second segment's state was handed out uncopied: RuntimeError, in-place on a leaf."""
    x, state = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((2, 7, 4), (2, 4)))
    lengths = [2, 2, 2, 1] if levels == 2 else [[2, 2], [2, 1]]

    def inner(state: Tensor) -> Tensor | None:
        return state * 1 if with_state else None  # torch refuses to write into a leaf, in the plain run too

    hold_against(
        lambda core, x, s: cut_scan(core, x, inner(s), lengths),
        lambda core, x, s: SegmentedRNN(core, levels)(x, inner(s)),
        InPlace().double(),
        (x, state),
    )
