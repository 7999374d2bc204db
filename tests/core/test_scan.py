"""checkpointed_scan, and SegmentedRNN around cores of one's own: bitwise the plain loop over the same segments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from custom_cores import ConvLSTM, DiagonalStateSpace
from reference import assert_same, cut_lengths, cut_scan, hold_against, run_once, weighted_sum
from torch import Tensor, nn

from seqckpt import SegmentedRNN, checkpointed_scan
from seqckpt.errors import ReplayError

LEVELS: list[Any] = [1, 3, 9, 50, [4, 2], [6, 3, 1]]


def cut(levels: Any, num_steps: int) -> list[Any]:
    return cut_lengths(num_steps, *(levels if isinstance(levels, list) else [levels]))


def randn(*shape: int, requires_grad: bool = True) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=requires_grad)


class Ema(nn.Module):
    """Nested inputs, state and outputs, dropout, and a number among the outputs' companions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(width))
        self.dropout = nn.Dropout(0.4)

    def forward(self, x: dict[str, Tensor], state: Any) -> tuple[Any, Any]:
        (mean,), age = state if state is not None else ([x["a"].new_zeros(x["a"].shape[0], x["a"].shape[2])], 0)
        means = []
        for a, b in zip(x["a"].unbind(1), x["b"].unbind(1), strict=True):
            mean = torch.lerp(mean, self.dropout(a), self.decay.sigmoid()) + b.mean((-1, -2))[:, None]
            means.append(mean)
        y = torch.stack(means, 1)
        return {"mean": y, "pair": (y * 2, [y.square().sum(-1)])}, ([mean], age + x["a"].shape[1])


CORES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], Callable[[], Any]]] = {
    "ConvLSTM": (
        lambda: ConvLSTM(2, 3),
        lambda: randn(2, 9, 2, 4, 4),
        lambda: (randn(2, 3, 4, 4), randn(2, 3, 4, 4)),
    ),
    "DiagonalStateSpace": (
        lambda: DiagonalStateSpace(3, 4),
        lambda: randn(2, 9, 3),
        lambda: {"s": torch.randn(2, 4, dtype=torch.cdouble, requires_grad=True), "steps": torch.tensor(7)},
    ),
    "Ema": (
        lambda: Ema(3),
        lambda: {"a": randn(2, 9, 3), "b": randn(2, 9, 2, 2)},
        lambda: ([randn(2, 3)], 0),
    ),
}


def real_parts(results: Any) -> Tensor:
    """The usual loss, in which complex states count too."""
    y, state = results
    loss = weighted_sum(y)
    return loss + torch.view_as_real(state["s"]).square().sum() if isinstance(state, dict) else loss


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("name", CORES)
def test_custom_core(name: str, levels: Any) -> None:
    make, inputs, state = CORES[name]
    core = make().double()
    for hx in (None, state()):
        hold_against(
            lambda core, x, hx: cut_scan(core, x, hx, cut(levels, 9)),
            lambda core, x, hx: SegmentedRNN(core, levels)(x, hx),
            core,
            (inputs(), hx),
            loss=real_parts,
        )


@pytest.mark.parametrize("name", ["ConvLSTM", "DiagonalStateSpace"])
def test_custom_core_undivided(name: str) -> None:
    """One step after the other has no larger products when undivided: to 1e-12, where 1e-10 is promised."""
    make, inputs, state = CORES[name]
    core = make().double()
    given = (inputs(), state())
    undivided = run_once(core, lambda core, x, hx: core(x, hx), given, loss=real_parts)
    segmented = run_once(core, lambda core, x, hx: SegmentedRNN(core, 4)(x, hx), given, loss=real_parts)
    assert_same(segmented, undivided, tolerance=1e-12)


def test_time_major() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Tensor]:
            y = self.scale * x.cumsum(0) + (0 if state is None else state)
            return y, y[-1]

    hold_against(
        lambda core, x: cut_scan(core, x, None, [4, 4, 3], time_dim=0),
        lambda core, x: SegmentedRNN(core, 4, batch_first=False)(x),
        Sum().double(),
        (randn(11, 2, 3),),
    )


# ------------------------------------------------------------------ functions with closures


def held(module: nn.Module, run_segment: Callable[..., Any]) -> None:
    """`run_segment(module)` makes the function to be scanned."""
    hold_against(
        lambda m, x, s: cut_scan(run_segment(m), x, s, [3, 3, 2]),
        lambda m, x, s: checkpointed_scan(run_segment(m), x, s, 3),
        module,
        (randn(2, 8, 4), randn(2, 4)),
    )


def leaky(weights: Any, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    steps = []
    for x_t in x.unbind(1):
        state = (state * 0.9 + weights(x_t)).tanh()
        steps.append(state)
    return torch.stack(steps, 1), state


def test_closure_over_a_module() -> None:
    held(nn.Linear(4, 4).double(), lambda m: lambda x, state: leaky(m, x, state))


def test_partial_with_a_module() -> None:
    held(nn.Linear(4, 4).double(), lambda m: partial(leaky, m))


def test_closure_over_bare_parameters() -> None:
    held(nn.Linear(4, 4).double(), lambda m: lambda x, state, w=m.weight: leaky(lambda x_t: x_t @ w, x, state))


def test_closure_over_frozen_and_trainable_modules() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 4)).double()
    module[0].requires_grad_(False)
    held(module, lambda m: lambda x, state: leaky(m, x, state))


@pytest.mark.parametrize("segment_length", [3, [4, 2], 20])
def test_tensor_computed_outside_is_refused(segment_length: Any) -> None:
    weight = randn(4, 4)
    scaled = weight * 2  # has a graph of its own
    with pytest.raises(ReplayError, match=r"computed outside of it .*hand it in as an input or as part of the state"):
        checkpointed_scan(lambda x, s: leaky(lambda t: t @ scaled, x, s), randn(2, 8, 4), randn(2, 4), segment_length)


def test_tensor_computed_outside_may_come_in_as_state() -> None:
    weight = randn(4, 4)

    def run(x: Tensor, state: Any) -> Any:
        y, s = leaky(lambda t: t @ state[1], x, state[0])
        return y, (s, state[1])

    x, s = randn(2, 8, 4), randn(2, 4)
    y, _ = checkpointed_scan(run, x, (s, weight * 2), 3)
    y.sum().backward()
    got, weight.grad = weight.grad, None
    cut_scan(run, x, (s, weight * 2), [3, 3, 2])[0].sum().backward()
    assert torch.equal(got, weight.grad)


def test_function_without_any_weight() -> None:
    held(nn.Identity(), lambda m: lambda x, state: leaky(m, x, state))


def test_state_of_none_throughout() -> None:
    linear = nn.Linear(4, 4).double()
    hold_against(
        lambda m, x: torch.cat([m(part) for part in x.split(3, 1)], 1),
        lambda m, x: checkpointed_scan(lambda x, state: (m(x), None), x, None, 3)[0],
        linear,
        (randn(2, 8, 4),),
    )


# ------------------------------------------------------------------ wrong use


def test_outputs_with_another_number_of_steps() -> None:
    with pytest.raises(ReplayError, match=r"segment 1 of 3 .*shape \(2, 2, 4\); expected 3 rows in dimension 1"):
        checkpointed_scan(lambda x, state: (x[:, 1:], state), randn(2, 8, 4), None, 3)


def test_outputs_nested_in_two_ways() -> None:
    def run(x: Tensor, state: int) -> Any:
        return (x if state == 0 else [x]), state + 1

    with pytest.raises(ReplayError, match="segment 2 of 3"):
        checkpointed_scan(run, randn(2, 8, 4), 0, 3)


def test_inputs_of_different_lengths() -> None:
    with pytest.raises(ValueError, match=r"shapes \[\(2, 8, 4\), \(2, 7\)\]: expected .*equally many time steps"):
        checkpointed_scan(lambda x, state: (x, state), (randn(2, 8, 4), randn(2, 7)), None, 3)


def test_inputs_without_time() -> None:
    with pytest.raises(ValueError, match="equally many time steps in dimension 1"):
        checkpointed_scan(lambda x, state: (x, state), randn(8), None, 3)
