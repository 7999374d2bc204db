"""How often things run: each segment exactly twice but the last, nothing twice without a gradient; floating-point
operations are 2 F + B - last."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from reference import CELLS, sequence
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from seqckpt import Checkpointed, SegmentedRNN, checkpointed_scan, is_replaying


class Spy:
    """A scan's function that writes down where each of its segments starts, with a * in replays."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.weight = torch.ones((), requires_grad=True)

    def __call__(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        self.calls.append(f"{int(x[0, 0])}{'*' if is_replaying() else ''}")
        return self.weight * x, state

    def run(self, num_steps: int, segment_length: Any) -> str:
        x = torch.arange(float(num_steps))[None]
        y, _ = checkpointed_scan(self, x, None, segment_length)
        y.sum().backward()
        assert self.weight.grad == x.sum()
        return " ".join(self.calls)


@pytest.mark.parametrize(
    ("num_steps", "segment_length", "expected"),
    [
        (6, 2, "0 2 4 2* 0*"),  # the last segment's graph is kept
        (7, 2, "0 2 4 6 4* 2* 0*"),
        (2, 2, "0"),
        (1, 2, "0"),
        (6, 6, "0"),
        (6, 9, "0"),
        (3, 1, "0 1 2 1* 0*"),
        # levels: the second outer segment keeps its own last; the first is run again, and its last is kept then
        (8, [4, 2], "0 2 4 6 4* 0* 2* 0*"),
        (7, [4, 2], "0 2 4 6 4* 0* 2* 0*"),
        (4, [4, 2], "0 2 0*"),
        (6, [9, 2], "0 2 4 2* 0*"),
        (12, [4, 2], "0 2 4 6 8 10 8* 4* 6* 4* 0* 2* 0*"),
        (8, [4, 2, 1], "0 1 2 3 4 5 6 7 6* 4* 5* 4* 0* 1* 2* 3* 2* 0* 1* 0*"),
    ],
)
def test_order_of_segments(num_steps: int, segment_length: Any, expected: str) -> None:
    assert Spy().run(num_steps, segment_length) == expected


def count_calls(module: nn.Module) -> list[bool]:
    """A list that grows by one entry per call of the module: whether it was a replay."""
    calls: list[bool] = []
    module.register_forward_pre_hook(lambda *_: calls.append(is_replaying()))
    return calls


@pytest.mark.parametrize("cell", CELLS)
def test_torch_core_runs_twice_but_the_last(cell: str) -> None:
    core = CELLS[cell](3, 4, 2)
    calls = count_calls(core)
    SegmentedRNN(core, 3)(sequence(core, 10, 2))[0].sum().backward()
    assert calls == [False] * 4 + [True] * 3


@pytest.mark.parametrize("segment_length", [7, 14, 15])
def test_no_empty_segment_case_11(segment_length: int) -> None:
    core = nn.LSTM(3, 4)
    lengths: list[int] = []
    core.register_forward_pre_hook(lambda _, args: lengths.append(len(args[0])))
    with torch.no_grad():
        SegmentedRNN(core, segment_length)(torch.randn(14, 2, 3))
    assert lengths == ([7, 7] if segment_length == 7 else [14])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, "frozen", "eval and frozen"])
@pytest.mark.parametrize("segment_length", [3, [6, 2]])
def test_nothing_twice_without_a_gradient_case_30(mode: Any, segment_length: Any) -> None:
    core = nn.LSTM(3, 4)
    if isinstance(mode, str):
        core.requires_grad_(False).train("eval" not in mode)
    calls = count_calls(core)
    x = torch.randn(10, 2, 3)
    context: Callable[[], Any] = nullcontext if isinstance(mode, str) else mode
    with context():
        hidden, _ = SegmentedRNN(core, segment_length)(x)
        expected, _ = core(x)
    assert not hidden.requires_grad
    assert calls == [False] * ((4 if segment_length == 3 else 5) + 1)  # 2 + 2 + 2 | 2 + 2, and the undivided call
    assert (hidden - expected).abs().max() < 1e-6  # float32: undivided products, and other kernels without a gradient


def test_eval_mode_with_a_gradient_still_works() -> None:
    core = nn.LSTM(3, 4).eval()
    x = torch.randn(10, 2, 3, requires_grad=True)
    SegmentedRNN(core, 3)(x)[0].sum().backward()
    assert x.grad is not None


def test_no_backward_into_what_no_loss_reaches() -> None:
    """A loss of the first segment alone replays the first segment alone."""
    core = nn.LSTM(3, 4)
    calls = count_calls(core)
    SegmentedRNN(core, 3)(torch.randn(10, 2, 3))[0][:3].sum().backward()
    assert calls.count(True) == 3  # d(outputs) is one tensor, zero beyond the third step: zeros are gradients too


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_checkpointed_runs_twice_per_level(depth: int) -> None:
    inner = nn.Linear(3, 3)
    calls = count_calls(inner)
    module: nn.Module = inner
    for _ in range(depth):
        module = Checkpointed(module)
    module(torch.randn(2, 3)).sum().backward()
    assert len(calls) == depth + 1
    with torch.no_grad():
        module(torch.randn(2, 3))
    assert len(calls) == depth + 2


# ------------------------------------------------------------------ floating-point operations


def count_flops(run: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def elman(weights: nn.Linear, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    state = x.new_zeros(x.shape[0], 8) if state is None else state
    steps = []
    for x_t in x.unbind(1):
        state = weights(torch.cat([x_t, state], 1)).tanh()
        steps.append(state)
    return torch.stack(steps, 1), state


class Elman(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(16, 8)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Tensor]:
        return elman(self.weights, x, state)


@pytest.mark.parametrize(("num_steps", "segment_length"), [(12, 3), (13, 3), (12, 12), (12, 1), (12, 20)])
@pytest.mark.parametrize("make", [Elman, lambda: nn.LSTM(8, 8, 2, batch_first=True).double()])
def test_flops_are_two_forwards_and_a_backward_less_the_last(
    make: Callable[[], nn.Module], num_steps: int, segment_length: int
) -> None:
    core = make()
    x = torch.randn(2, num_steps, 8, dtype=next(core.parameters()).dtype, requires_grad=True)
    hidden: list[Tensor] = []
    forward = count_flops(lambda: hidden.append(core(x, None)[0]))
    backward = count_flops(lambda: hidden.pop().sum().backward())
    last = (num_steps - 1) % segment_length + 1
    replayed = count_flops(lambda: SegmentedRNN(core, segment_length)(x)[0].sum().backward())
    per_step = forward // num_steps
    # the first segment starts from a state of zeros that needs no gradient, in the plain run too
    assert forward == per_step * num_steps
    assert replayed == 2 * forward + backward - last * per_step


def test_flops_of_checkpointed() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    x = torch.randn(4, 8, requires_grad=True)
    forward = count_flops(lambda: module(x))
    both = count_flops(lambda: module(x).sum().backward())
    assert count_flops(lambda: Checkpointed(module)(x).sum().backward()) == both + forward
