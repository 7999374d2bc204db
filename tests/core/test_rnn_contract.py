"""SegmentedRNN stands where the network stood: keys, copies, weights, wrong inputs, carried states, compiled cores."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from custom_cores import ConvLSTM
from reference import CELLS, cut_lengths, cut_run, cut_scan, given_state, hold_against, leaves_of, sequence
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence

from seqckpt import SegmentedRNN

# ------------------------------------------------------------------ weights and their names


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"proj_size": 2}, {"bias": False}])
def test_state_dict_has_the_core_s_own_keys_case_32(options: dict[str, Any]) -> None:
    core, other = (nn.LSTM(3, 4, 2, **options) for _ in range(2))
    rnn = SegmentedRNN(core, 5)
    assert list(rnn.state_dict()) == list(core.state_dict())
    rnn.load_state_dict(other.state_dict(), strict=True)
    nn.LSTM(3, 4, 2, **options).load_state_dict(rnn.state_dict(), strict=True)
    assert all(torch.equal(a, b) for a, b in zip(rnn.parameters(), other.parameters(), strict=True))


def test_state_dict_inside_a_model() -> None:
    plain = nn.ModuleDict({"rnn": nn.GRU(3, 4), "head": nn.Linear(4, 2)})
    model = nn.ModuleDict({"rnn": SegmentedRNN(nn.GRU(3, 4), 5), "head": nn.Linear(4, 2)})
    assert list(model.state_dict()) == list(plain.state_dict())
    model.load_state_dict(plain.state_dict(), strict=True)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda rnn: pickle.loads(pickle.dumps(rnn))])
def test_copies(duplicate: Callable[[Any], Any]) -> None:
    rnn = SegmentedRNN(nn.LSTM(3, 4, 2, dropout=0.5), [6, 2])
    twin, x = duplicate(rnn), torch.randn(9, 2, 3)
    assert twin.segment_length == [6, 2]
    assert list(twin.state_dict()) == list(rnn.state_dict())
    results = []
    for module in (rnn, twin):
        torch.manual_seed(1)
        hidden, _ = module(x)
        hidden.sum().backward()
        results.append((hidden, [p.grad for p in module.parameters()]))
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))


def test_to_dtype() -> None:
    rnn = SegmentedRNN(nn.LSTM(3, 4), 5)
    hidden, state = rnn.to(torch.float64)(torch.randn(9, 2, 3, dtype=torch.float64))
    assert {t.dtype for t in leaves_of((hidden, state))} == {torch.float64}


def test_every_parameter_moves_in_one_step_case_25() -> None:
    core = nn.LSTM(3, 4, 3, bidirectional=True).double()
    twin = copy.deepcopy(core)
    x = sequence(core, 11, 2).detach()
    for module, run in ((core, SegmentedRNN(core, 4)), (twin, twin)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        run(x)[0].square().sum().backward()
        optimizer.step()
    for (name, a), (_, b) in zip(core.named_parameters(), twin.named_parameters(), strict=True):
        assert (a - b).abs().max() < 1e-10, name


def test_tied_weights() -> None:
    """Two layers that are one: the sum of both uses' gradients, in one .grad."""
    core = nn.LSTM(4, 4, 2).double()
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        setattr(core, f"{name}_l1", getattr(core, f"{name}_l0"))
    assert len(list(core.parameters())) == 4
    x = sequence(core, 9, 2)
    hold_against(
        lambda core, x: cut_run(core, x, None, [4, 4, 1]), lambda core, x: SegmentedRNN(core, 4)(x), core, (x,)
    )
    hold_against(lambda core, x: core(x), lambda core, x: SegmentedRNN(core, 4)(x), core, (x,), tolerance=1e-10)


def test_weight_tied_to_another_part_of_the_model() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = nn.RNN(4, 4)
            self.out = nn.Linear(4, 4, bias=False)
            self.out.weight = self.core.weight_hh_l0

    def run(model: Tied, x: Tensor, rnn: Callable[..., Any]) -> Tensor:
        return model.out(rnn(model.core, x)[0])

    hold_against(
        lambda m, x: run(m, x, lambda core, x: core(x)),
        lambda m, x: run(m, x, lambda core, x: SegmentedRNN(core, 4)(x)),
        Tied().double(),
        (torch.randn(9, 2, 4, dtype=torch.float64),),
        tolerance=1e-10,
    )


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"dropout": 0.5}])
@pytest.mark.parametrize("parametrization", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrized_weights(parametrization: str, options: dict[str, Any]) -> None:
    """The parametrization is computed once per call, as for a network that calls its kernel once."""
    core = nn.LSTM(4, 4, 2, **options).double()
    getattr(parametrizations, parametrization)(core, "weight_hh_l0")
    x = sequence(core, 9, 2)
    hold_against(
        lambda core, x: cut_run(core, x, None, [4, 4, 1]), lambda core, x: SegmentedRNN(core, 4)(x), core, (x,)
    )


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo's own, of any inner tensor
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_core(backend: str) -> None:
    core = ConvLSTM(2, 3).double()
    x = torch.randn(2, 8, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn(2, 3, 3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    hold_against(
        lambda core, x, state: cut_scan(core, x, state, [4, 4]),
        lambda core, x, state: SegmentedRNN(torch.compile(core, backend=backend), 4)(x, state),
        core,
        (x, state),
        tolerance=1e-10,  # aot_eager decomposes operations
    )


def test_compiled_torch_core() -> None:
    core = nn.LSTM(3, 4).double()
    x = sequence(core, 9, 2)
    hold_against(
        lambda core, x: cut_run(core, x, None, [4, 4, 1]),
        lambda core, x: SegmentedRNN(torch.compile(core, backend="eager"), 4)(x),
        core,
        (x,),
    )


# ------------------------------------------------------------------ wrong inputs


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (None, TypeError),
        (2.5, TypeError),
        ("7", TypeError),
        (True, TypeError),
        ([], ValueError),
        ([5, 5], ValueError),
        ([5, 25], ValueError),
        ([25, 0], ValueError),
        ([25, "5"], TypeError),
    ],
)
def test_segment_length_is_checked_at_once_case_33(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"segment_length is .*expected"):
        SegmentedRNN(nn.LSTM(3, 4), value)
    rnn = SegmentedRNN(nn.LSTM(3, 4), 7)
    with pytest.raises(error, match=r"segment_length is .*expected"):
        rnn.segment_length = value
    assert rnn.segment_length == 7


WRONG_STATES: dict[str, tuple[str, Callable[[], Any]]] = {
    "one tensor to an LSTM": ("lstm", lambda: torch.zeros(2, 3, 5)),
    "a tuple to a GRU": ("gru", lambda: (torch.zeros(2, 3, 5), torch.zeros(2, 3, 5))),
    "a triple": ("lstm", lambda: (torch.zeros(2, 3, 5),) * 3),
    "text": ("gru", lambda: "zeros"),
    "a pair of None": ("lstm", lambda: (None, None)),
    "2-D state, 3-D input": ("gru", lambda: torch.zeros(2, 5)),
    "2-D states, 3-D input": ("lstm", lambda: (torch.zeros(2, 5), torch.zeros(2, 5))),
    "batch first": ("gru", lambda: torch.zeros(3, 2, 5)),
    "one layer too many": ("lstm", lambda: (torch.zeros(3, 3, 5), torch.zeros(3, 3, 5))),
    "another width of c": ("lstm", lambda: (torch.zeros(2, 3, 5), torch.zeros(2, 3, 4))),
    "another batch": ("rnn_tanh", lambda: torch.zeros(2, 4, 5)),
}


@pytest.mark.parametrize("segment_length", [1, 7, 50, [7, 2]])
@pytest.mark.parametrize("what", WRONG_STATES)
def test_wrong_states_case_14(what: str, segment_length: Any) -> None:
    cell, state = WRONG_STATES[what]
    core = CELLS[cell](4, 5, 2, batch_first=True)
    calls: list[Any] = []
    core.register_forward_pre_hook(lambda *_: calls.append(1))
    with pytest.raises((TypeError, ValueError, RuntimeError), match=r"hx|[Hh]idden|cell"):
        SegmentedRNN(core, segment_length)(torch.randn(3, 20, 4), state())
    assert not calls, "something was computed before the error"


def test_wrong_states_say_hx_and_what_was_given() -> None:
    with pytest.raises(TypeError, match=r"hx of an LSTM is a pair .*got one tensor of shape \(1, 3, 5\)"):
        SegmentedRNN(nn.LSTM(4, 5), 7)(torch.randn(20, 3, 4), torch.zeros(1, 3, 5))
    with pytest.raises(TypeError, match="hx of a GRU is one tensor h_0; got a tuple of 2"):
        SegmentedRNN(nn.GRU(4, 5), 7)(torch.randn(20, 3, 4), (torch.zeros(1, 3, 5), torch.zeros(1, 3, 5)))


WRONG_INPUTS: dict[str, Callable[[], Any]] = {
    "another width": lambda: torch.randn(3, 5, 2),
    "another width, unbatched": lambda: torch.randn(5, 2),
    "no steps": lambda: torch.randn(3, 0, 13),
    "no steps, unbatched": lambda: torch.randn(0, 13),
    "1-D": lambda: torch.randn(13),
    "4-D": lambda: torch.randn(1, 3, 5, 13),
    "another width, packed": lambda: pack_padded_sequence(torch.randn(3, 5, 2), torch.tensor([5, 3, 1]), True),
    "another dtype": lambda: torch.randn(3, 5, 13).double(),
}


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"dropout": 0.5}])
@pytest.mark.parametrize("what", WRONG_INPUTS)
def test_wrong_inputs_fail_as_in_the_network_case_16(what: str, options: dict[str, Any]) -> None:
    core = nn.LSTM(13, 4, 2, batch_first=True, **options)
    x = WRONG_INPUTS[what]()
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever torch raises
        core(x)
    with pytest.raises(type(expected.value)) as got:
        SegmentedRNN(core, 2)(x)
    # torch lets packed rows of another width through to the matrix product; here the network's own check is made
    assert str(got.value) == str(expected.value) or "input.size(-1) must be equal to input_size" in str(got.value)


def test_batch_first_that_contradicts_the_core() -> None:
    with pytest.raises(ValueError, match="batch_first=False contradicts the core's own batch_first=True"):
        SegmentedRNN(nn.LSTM(3, 4, batch_first=True), 5, batch_first=False)


def test_a_sequence_without_steps_case_10() -> None:
    """torch refuses it where the sequences are packed, before we see it."""
    with pytest.raises(RuntimeError, match="greater than 0"):
        pack_padded_sequence(torch.randn(4, 3, 2), torch.tensor([4, 0, 2]), enforce_sorted=False)


# ------------------------------------------------------------------ from step to step


def test_state_carried_over_detached_case_4() -> None:
    core = nn.LSTM(3, 4, 2, dropout=0.3)
    rnn, optimizer = SegmentedRNN(core, 5), torch.optim.SGD(core.parameters(), lr=0.1)
    state = None
    for _ in range(4):
        hidden, state = rnn(torch.randn(23, 2, 3), state)
        optimizer.zero_grad()
        hidden.square().sum().backward()
        optimizer.step()
        state = tuple(s.detach() for s in state)


def test_state_carried_over_with_its_history_is_refused_as_in_plain_torch_case_4() -> None:
    rnn = SegmentedRNN(nn.LSTM(3, 4), 5)
    hidden, state = rnn(torch.randn(23, 2, 3))
    hidden.sum().backward()
    hidden, _ = rnn(torch.randn(23, 2, 3), state)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        hidden.sum().backward()


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"dropout": 0.5}])
def test_two_clips_in_one_graph(options: dict[str, Any]) -> None:
    """The state handed on with its history, and one backward: gradients run through both calls."""
    core = nn.LSTM(3, 4, 2, **options).double()
    first, second = sequence(core, 9, 2), sequence(core, 7, 2)

    def twice(run: Callable[..., Any]) -> Callable[..., Any]:
        def both(core: nn.LSTM, first: Tensor, second: Tensor, state: Any) -> Any:
            hidden, state = run(core, first, state)
            return hidden, run(core, second, state)

        return both

    hold_against(
        twice(lambda core, x, s: core(x, s)),
        twice(lambda core, x, s: SegmentedRNN(core, 4)(x, s)),
        core,
        (first, second, given_state(core, 2)),
        tolerance=1e-10,
    )


def test_one_video_does_not_change_the_next_case_18() -> None:
    rnn = SegmentedRNN(nn.LSTM(3, 4), 5).eval()
    a, b = torch.randn(23, 2, 3), torch.randn(17, 2, 3)
    alone, _ = copy.deepcopy(rnn)(b)
    rnn(a)
    assert torch.equal(rnn(b)[0], alone)


def test_segment_length_may_be_changed_between_calls() -> None:
    rnn = SegmentedRNN(nn.LSTM(3, 4).double(), 5)
    x = torch.randn(23, 2, 3, dtype=torch.float64)
    expected, _ = rnn(x)
    for segment_length in (1, 23, 100, [10, 3]):
        rnn.segment_length = segment_length
        assert rnn.segment_length == segment_length
        assert (rnn(x)[0] - expected).abs().max() < 1e-10


def test_nothing_of_input_or_state_is_changed() -> None:
    core = nn.LSTM(3, 4, 2, bidirectional=True, dropout=0.5).double()
    x, state = sequence(core, 9, 2), given_state(core, 2)
    before = [t.detach().clone() for t in (x, *state)]
    SegmentedRNN(core, 4)(x, state)[0].sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, (x, *state), strict=True))


def test_cut_lengths_of_the_reference() -> None:
    assert cut_lengths(7, 4, 2) == [[2, 2], [2, 1]]
