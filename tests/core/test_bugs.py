"""Faults that were found and mended, and traps of the published recipes, each with its story."""

from __future__ import annotations

import pytest
import torch
from reference import assert_same, run_once
from torch import nn

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
