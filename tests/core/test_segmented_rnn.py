"""SegmentedRNN computes what nn.LSTM, nn.GRU and nn.RNN compute, with all their options.

Two twins: the equally cut plain run, bitwise; the network itself, undivided, to TO_ROUNDING, since its kernels see all
steps at once and round differently. Numbers of cases are those of the list of cases that this project keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import CELLS, assert_same, cut_lengths, cut_run, given_state, hold_against, leaves_of, run_once, sequence
from torch import Tensor, nn

from seqckpt import SegmentedRNN

TO_ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-5}  # what the project promises; see EXACTNESS: two grades


def hold_both(core: nn.RNNBase, x: Tensor, state: Any, segment_length: int | list[int], **options: Any) -> None:
    """Bitwise against the equally cut run, to rounding against the undivided one."""
    levels = segment_length if isinstance(segment_length, list) else [segment_length]
    lengths = cut_lengths(x.shape[1 if core.batch_first and x.dim() == 3 else 0], *levels)
    segmented = run_once(
        core, lambda core, x, state: SegmentedRNN(core, segment_length)(x, state), (x, state), **options
    )
    cut = run_once(core, lambda core, x, state: cut_run(core, x, state, lengths), (x, state), **options)
    undivided = run_once(core, lambda core, x, state: core(x, state), (x, state), **options)
    assert_same(segmented, cut)
    assert_same(segmented, undivided, tolerance=TO_ROUNDING[x.dtype])


# ------------------------------------------------------------------ options of the network


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("num_layers", "dropout"), [(1, 0.0), (2, 0.0), (3, 0.0), (2, 0.4), (3, 0.4)])
@pytest.mark.parametrize("cell", CELLS)
def test_equals_plain(cell: str, num_layers: int, bidirectional: bool, dropout: float) -> None:
    core = CELLS[cell](4, 5, num_layers, bidirectional=bidirectional, dropout=dropout).double()
    x = sequence(core, 11, 3)
    hold_both(core, x, given_state(core, 3), 4)
    hold_both(core.eval(), x, None, 4)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_bias_and_batch_first(cell: str, bias: bool, batch_first: bool, bidirectional: bool) -> None:
    core = CELLS[cell](4, 5, 2, bias=bias, batch_first=batch_first, bidirectional=bidirectional).double()
    hold_both(core, sequence(core, 8, 3), given_state(core, 3), 3)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("segment_length", [7, [20, 6]])
def test_projection_case_17(bidirectional: bool, dropout: float, segment_length: int | list[int]) -> None:
    core = nn.LSTM(8, 16, 2, proj_size=5, bidirectional=bidirectional, dropout=dropout).double()
    hold_both(core, sequence(core, 50, 3), given_state(core, 3) if dropout else None, segment_length)


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("num_steps", [1, 6, 7, 8, 13, 14, 50])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_lengths_around_the_segment_case_3(cell: str, num_steps: int, num_layers: int) -> None:
    core = CELLS[cell](3, 4, num_layers).double()
    hold_both(core, sequence(core, num_steps, 2), given_state(core, 2), 7)


@pytest.mark.parametrize("segment_length", [[6, 2], [8, 3], [100, 4], [9, 4, 2], [5, 1]])
@pytest.mark.parametrize(("bidirectional", "dropout"), [(False, 0.0), (False, 0.5), (True, 0.0), (True, 0.5)])
def test_nested_levels(segment_length: list[int], bidirectional: bool, dropout: float) -> None:
    core = nn.LSTM(3, 4, 2, bidirectional=bidirectional, dropout=dropout).double()
    hold_both(core, sequence(core, 13, 2), given_state(core, 2), segment_length)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_unbatched_case_15(cell: str, batch_first: bool, bidirectional: bool) -> None:
    core = CELLS[cell](4, 3, 2, batch_first=batch_first, bidirectional=bidirectional).double()
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    hold_both(core, x, None, 2)
    state = given_state(core, 1)
    state = tuple(s.detach()[:, 0].requires_grad_() for s in state) if cell == "lstm" else state.detach()[:, 0]
    hold_both(core, x, state, 2)


def test_float32() -> None:
    for bidirectional, dropout in [(False, 0.0), (False, 0.5), (True, 0.5)]:
        core = nn.LSTM(4, 5, 2, bidirectional=bidirectional, dropout=dropout)
        hold_both(core, sequence(core, 40, 3), given_state(core, 3), 7)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_bfloat16_module(cell: str, bidirectional: bool) -> None:
    core = CELLS[cell](4, 5, 2, bidirectional=bidirectional).bfloat16()
    x = sequence(core, 9, 2)
    run = hold_against(
        lambda core, x: cut_run(core, x, None, cut_lengths(9, 4)), lambda core, x: SegmentedRNN(core, 4)(x), core, (x,)
    )
    assert all(t.dtype == torch.bfloat16 for t in run.results)


# ------------------------------------------------------------------ dropout


@pytest.mark.parametrize("num_layers", [2, 3, 4])
@pytest.mark.parametrize("cell", CELLS)
def test_draws_the_masks_of_the_network_itself(cell: str, num_layers: int) -> None:
    core = CELLS[cell](4, 5, num_layers, dropout=0.5).double()
    x = sequence(core, 9, 3)
    torch.manual_seed(3)
    hidden, _ = core(x)
    after = torch.rand(1)
    torch.manual_seed(3)
    segmented, _ = SegmentedRNN(core, 4)(x)
    assert (hidden - segmented).abs().max() < 1e-10  # any other mask would differ by about a tenth
    assert torch.equal(torch.rand(1), after)


def test_no_dropout_after_the_last_layer() -> None:
    core = nn.LSTM(4, 5, 2, dropout=0.9).double()
    hidden, _ = SegmentedRNN(core, 4)(sequence(core, 30, 8))
    assert (hidden != 0).all()


@pytest.mark.parametrize("cell", CELLS)
def test_dropout_of_one_case_43(cell: str) -> None:
    core = CELLS[cell](4, 5, 2, dropout=1.0).double()
    hold_both(core, sequence(core, 9, 2), None, 4, loss=lambda results: results[0].sum())
    hidden, _ = SegmentedRNN(core, 4)(sequence(core, 9, 2))
    hidden.sum().backward()
    assert hidden.isfinite().all()
    assert all(not p.grad.any() for name, p in core.named_parameters() if name.endswith("l0"))


def test_dropout_gradient_against_finite_differences_case_43() -> None:
    core = nn.LSTM(4, 5, 2, dropout=0.5).double()
    rnn, x = SegmentedRNN(core, 4), sequence(core, 11, 3).detach()

    def loss() -> Tensor:
        torch.manual_seed(5)  # pins the mask
        hidden, (h, c) = rnn(x)
        return hidden.square().sum() + h.sum() + c.square().sum()

    loss().backward()
    weight, step = core.weight_hh_l0, 1e-6
    with torch.no_grad():
        for i, j in [(0, 0), (7, 3), (19, 4)]:
            weight[i, j] += step
            above = loss()
            weight[i, j] -= 2 * step
            below = loss()
            weight[i, j] += step
            slope = (above - below) / (2 * step)
            # central differences in float64: an error of about step^2 + 1e-16 / step, far below 1e-6
            assert abs(slope - weight.grad[i, j]) < 1e-6 * max(1, abs(slope))


# ------------------------------------------------------------------ losses of parts of the result


def test_scalar_rnn_case_2() -> None:
    """Worked out on paper: h_t = 0.2 h_{t-1}, h_0 = 0.9."""
    core = nn.RNN(1, 1, nonlinearity="relu", bias=False)
    with torch.no_grad():
        core.weight_ih_l0.zero_()
        core.weight_hh_l0.fill_(0.2)
    for pick, weight_grad, state_grad in [(lambda y: y[-1].sum(), 0.108, 0.008), (lambda y: y.sum(), 1.368, 0.248)]:
        core.zero_grad()
        h0 = torch.full((1, 1, 1), 0.9, requires_grad=True)
        hidden, _ = SegmentedRNN(core, 1)(torch.zeros(3, 1, 1), h0)
        pick(hidden).backward()
        assert core.weight_hh_l0.grad.item() == pytest.approx(weight_grad, abs=1e-6)  # float32
        assert h0.grad.item() == pytest.approx(state_grad, abs=1e-6)


PARTS: dict[str, Callable[[Any], Tensor]] = {
    "outputs": lambda results: results[0].square().sum(),
    "h_n": lambda results: results[1][0].sum(),
    "c_n": lambda results: results[1][1].sum(),
    "h_n of the first layer": lambda results: results[1][0][0].sum(),
    "first output": lambda results: results[0][0].sum(),
    "an output in the middle": lambda results: results[0][6].sum(),
    "last output": lambda results: results[0][-1].sum(),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("segment_length", [1, 2, 3, 8, 13, [6, 2]])
def test_losses_of_parts_case_2(segment_length: Any, part: str) -> None:
    core = nn.LSTM(3, 4).double()
    hold_both(core, sequence(core, 8, 2), given_state(core, 2), segment_length, loss=PARTS[part])


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"dropout": 0.5}, {"proj_size": 2}])
def test_losses_of_parts_with_options(options: dict[str, Any], part: str) -> None:
    core = nn.LSTM(3, 4, 2, **options).double()
    for segment_length in (3, [4, 2]):
        hold_both(core, sequence(core, 8, 2), given_state(core, 2), segment_length, loss=PARTS[part])


def test_loss_of_second_segment_reaches_the_first_case_26() -> None:
    core = nn.LSTM(3, 4).double()
    x = sequence(core, 10, 2)
    hidden, _ = SegmentedRNN(core, 5)(x)
    hidden[5:].sum().backward()
    assert x.grad[:5].abs().min() > 0


def test_gradients_only_where_wanted() -> None:
    """x without, state with; x without, state without; half of the weights frozen."""
    core = nn.LSTM(3, 4, 2).double()
    x, (h, c) = sequence(core, 9, 2), given_state(core, 2)
    hold_both(core, x.detach(), (h, c), 4)
    hold_both(core, x.detach(), (h.detach(), c), 4)
    hold_both(core, x.detach(), None, 4)
    for name in ("weight_ih_l0", "bias_hh_l1"):
        core.get_parameter(name).requires_grad_(False)
    hold_both(core, x, (h, c), 4)
    hold_both(core, x.detach(), None, 4)
    hold_both(core.requires_grad_(False), x, (h, c), 4)


def test_batch_first_cuts_dimension_one_case_12() -> None:
    core = nn.LSTM(4, 5, 2, batch_first=True).double()
    shapes: list[tuple[int, ...]] = []
    core.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))
    with torch.no_grad():
        _, (h, _) = SegmentedRNN(core, 7)(sequence(core, 20, 3))
    assert shapes == [(3, 7, 4), (3, 7, 4), (3, 6, 4)]
    assert h.shape == (2, 3, 5)
    hold_both(core, sequence(core, 20, 2), given_state(core, 2), 7)  # B = layers = 2: nothing in the shapes tells


def test_results_are_what_the_network_returns() -> None:
    core = nn.LSTM(3, 4).double()
    hidden, state = SegmentedRNN(core, 4)(sequence(core, 9, 2))
    assert isinstance(state, tuple)
    assert all(t.requires_grad for t in leaves_of((hidden, state)))
