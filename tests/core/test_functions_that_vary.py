"""Functions that differ between pieces, or hide what they train: right gradients or an error, never silence."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import hold_against
from torch import Tensor, nn

from seqckpt import Checkpointed, ChunkedEncoder, SegmentedRNN, checkpoint_sequential, checkpointed_scan, is_replaying
from seqckpt.core import Keep
from seqckpt.errors import ReplayError


@pytest.fixture(autouse=True)
def in_float64() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class TwoWeights(nn.Module):
    """Uses p + q in some pieces only: autograd gives both weights one and the same gradient tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.q = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.p + self.q if torch.rand(()) < 0.5 else self.p
        return (x @ weight).tanh()


@pytest.mark.parametrize("seed", range(8))
def test_weights_that_share_a_gradient_tensor_keep_sums_of_their_own(seed: int) -> None:
    module, rows = TwoWeights(), torch.randn(12, 3)
    torch.manual_seed(seed)
    torch.cat([module(chunk) for chunk in rows.split(2)]).square().sum().backward()
    expected = [module.p.grad, module.q.grad]
    module.zero_grad()
    torch.manual_seed(seed)
    ChunkedEncoder(module, 2)(rows[None]).square().sum().backward()
    for grad, right in zip([module.p.grad, module.q.grad], expected, strict=True):
        if right is None:
            assert grad is None or not grad.any()
        else:
            assert torch.equal(grad, right)
    if module.q.grad is not None:
        assert module.p.grad.data_ptr() != module.q.grad.data_ptr()


def test_gradients_of_one_piece_do_not_share_memory() -> None:
    class Sum(TwoWeights):
        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.p + self.q)

    module = Sum()
    Checkpointed(module)(torch.randn(4, 3)).sum().backward()
    before = module.q.grad.clone()
    module.p.grad.mul_(2)
    assert torch.equal(module.q.grad, before)


@pytest.mark.parametrize("num_chunks", [3, 2], ids=["forgotten", "kept"])
def test_in_place_work_that_only_a_later_chunk_does_is_noticed(num_chunks: int) -> None:
    """By a count, which is another in the replay. A kept chunk would be written into where it stands."""

    class Flip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls = nn.Linear(3, 3), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.linear(x.mul_(-1) if self.calls == 2 else x)

    frames = torch.randn(1, 3 * num_chunks, 3)
    before = frames.clone()
    with pytest.raises(ReplayError, match=r"changed its input in place|replay of chunk 2 of 3 .*does not repeat"):
        ChunkedEncoder(Flip(), 3)(frames).sum().backward()
    assert num_chunks == 2 or torch.equal(frames, before)


@pytest.mark.parametrize("keep", [Keep(), Keep(depth=1), Keep(depth=2), Keep(depth=1.5, chunks=2)], ids=str)
@pytest.mark.parametrize("source", ["torch", "python"])
def test_layer_in_place_behind_a_block_that_hands_its_input_through_in_some_draws(source: str, keep: Keep) -> None:
    """Stochastic depth. A layer in place behind it writes into the chunk itself in some pieces, and not in others."""

    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6).double()

        def forward(self, x: Tensor) -> Tensor:
            draw = random.random() if source == "python" else float(torch.rand(()))
            return x if draw < 0.5 else x + self.linear(x)

    encoder = nn.Sequential(Skipping(), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 2).double()))
    for seed in range(10):
        frames = torch.randn(1, 11, 6, dtype=torch.float64, requires_grad=seed % 2 == 0)

        def run(encode: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[nn.Module, Tensor], Tensor]:
            def seeded(model: nn.Module, x: Tensor) -> Tensor:
                random.seed(seed)  # noqa: B023 - called in this turn
                torch.manual_seed(seed)  # noqa: B023
                return encode(model, x)

            return seeded

        hold_against(
            run(lambda m, x: torch.cat([m(part.clone()) for part in x[0].split([2, 3, 3, 3])])),
            run(lambda m, x: ChunkedEncoder(m, 3, keep=keep)(x)[0]),
            encoder,
            [frames],
        )


def test_lstm_weight_computed_outside_gets_its_gradient() -> None:
    lstm = nn.LSTM(3, 4, batch_first=True)
    raw = nn.Parameter(lstm.weight_hh_l0.detach().clone())
    del lstm._parameters["weight_hh_l0"]
    x = torch.randn(1, 12, 3)

    def gradient(rnn: nn.Module) -> Tensor:
        raw.grad = None
        torch.manual_seed(0)
        lstm.weight_hh_l0 = F.dropout(raw, 0.5)
        rnn(x)[0].square().sum().backward()
        assert raw.grad is not None
        return raw.grad

    expected = gradient(lstm)
    assert torch.allclose(gradient(SegmentedRNN(lstm, 3)), expected, rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2, "dropout": 0.5}], ids=str)
def test_weight_norm_by_hooks_trains_as_in_the_plain_network(options: dict[str, Any]) -> None:
    lstm = nn.LSTM(3, 4, batch_first=True, **options)
    torch.nn.utils.weight_norm(lstm, "weight_hh_l0")
    rnn, x = SegmentedRNN(lstm, 3), torch.randn(1, 12, 3)
    for step in range(3):
        gradients = []
        for module in (lstm, rnn):
            lstm.zero_grad()
            torch.manual_seed(step)
            module(x)[0].square().sum().backward()
            gradients.append([p.grad.clone() for p in lstm.parameters()])
        for a, b in zip(*gradients, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-10)
        with torch.no_grad():
            for p, grad in zip(lstm.parameters(), gradients[0], strict=True):
                p.sub_(0.01 * grad)


class TimesFive(nn.LSTM):
    def forward(self, x: Any, hx: Any = None) -> Any:
        y, state = super().forward(x, hx)
        return y * 5, state


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "dropout": 0.5}], ids=str)
def test_subclass_with_a_forward_of_its_own_is_run_by_it(options: dict[str, Any]) -> None:
    core, x = TimesFive(3, 4, batch_first=True, **options), torch.randn(1, 12, 3)
    torch.manual_seed(0)
    y, state = [], None
    for segment in x.split(5, 1):
        y_segment, state = core(segment, state)
        y.append(y_segment)
    torch.manual_seed(0)
    assert torch.equal(SegmentedRNN(core, 5)(x)[0], torch.cat(y, 1))


def test_subclass_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="bidirectional"):
        SegmentedRNN(TimesFive(3, 4, batch_first=True, bidirectional=True), 5)(torch.randn(1, 12, 3))


@pytest.mark.parametrize("frozen", [True, False])
def test_hooks_on_the_encoder_count_however_it_is_cut(frozen: bool) -> None:
    encoder = nn.Sequential(nn.Linear(3, 3).requires_grad_(not frozen), nn.Linear(3, 2))
    encoder.register_forward_hook(lambda module, args, output: output * 10)
    rows = torch.randn(1, 7, 3)
    assert torch.allclose(ChunkedEncoder(encoder, 3)(rows), encoder(rows), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"keep\.depth is 1"):
        ChunkedEncoder(encoder, 3, keep=Keep(depth=1))(rows)


class Hidden(nn.Module):
    """Holds a trainable tensor that is no parameter."""

    def __init__(self, factor: Tensor) -> None:
        super().__init__()
        self.factors = [factor]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factors[0]


FROZEN = nn.Linear(3, 3, dtype=torch.float64).requires_grad_(False)


@pytest.mark.parametrize(
    "run",
    [
        lambda g, x: checkpointed_scan(lambda rows, state: (FROZEN(rows) * g, state), x, None, 2)[0],
        lambda g, x: Checkpointed(nn.Sequential(FROZEN, Hidden(g)))(x),
        lambda g, x: ChunkedEncoder(nn.Sequential(FROZEN, Hidden(g)), 2, keep=Keep(frozen=False))(x),
        lambda g, x: checkpoint_sequential([FROZEN, lambda rows: rows * g], x, segments=1),
    ],
    ids=["scan", "checkpointed", "encoder", "sequential"],
)
def test_trainable_tensor_that_nobody_named_gets_its_gradient(run: Callable[[Tensor, Tensor], Tensor]) -> None:
    factor, x = torch.tensor(2.0, requires_grad=True), torch.randn(1, 7, 3)
    (expected,) = torch.autograd.grad((FROZEN(x) * factor).square().sum(), factor)
    (got,) = torch.autograd.grad(run(factor, x).square().sum(), factor)
    assert torch.allclose(got, expected, rtol=0, atol=1e-10)


def test_trainable_tensor_hidden_in_a_frozen_stage_is_refused() -> None:
    encoder = nn.Sequential(FROZEN, Hidden(torch.tensor(2.0, requires_grad=True)), nn.Linear(3, 3))
    with pytest.raises(ReplayError, match="not its parameters"):
        ChunkedEncoder(encoder, 2)(torch.randn(1, 7, 3))


def test_dataclass_results_are_refused_by_name() -> None:
    @dataclass
    class Features:
        y: Tensor

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Features:
            return Features(self.linear(x))

    with pytest.raises(TypeError, match="Features, a dataclass"):
        Checkpointed(Encoder())(torch.randn(2, 3))


def test_measuring_counts_as_a_replay() -> None:
    class Counter(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += not is_replaying()
            return x.tanh()

    counter = Counter()
    checkpoint_sequential([nn.Linear(3, 3), counter, nn.Linear(3, 3)], torch.randn(2, 3), segments=2).sum().backward()
    assert counter.calls == 1


@pytest.mark.parametrize("later", [lambda x: x[:, :1], lambda x: x.to(torch.float32)], ids=["shape", "dtype"])
def test_chunks_that_do_not_fit_together_are_refused(later: Callable[[Tensor], Tensor]) -> None:
    class Odd(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x if self.calls == 1 else later(x)

    with pytest.raises(ReplayError, match="as the first chunk returned"):
        ChunkedEncoder(Odd(), 3)(torch.randn(1, 9, 3))
