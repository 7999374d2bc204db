"""What stays in memory for backward, and what does not grow: bytes that autograd saves, counted by storage."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from seqckpt import Checkpointed, SegmentedRNN, checkpointed_scan

FLOAT64 = 8


class LiveBytes:
    """Bytes of the storages that live graphs hold, each counted once; weights excepted."""

    def __init__(self, weights: list[Tensor]) -> None:
        self.uses: Counter[int] = Counter()
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0
        self.weights = {w.untyped_storage()._cdata for w in weights}
        self.hooks = saved_tensors_hooks(self._pack, lambda held: held.tensor)

    def __enter__(self) -> LiveBytes:
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> _Held:
        return _Held(tensor, self)

    def take(self, key: int, size: int) -> None:
        self.uses[key] += 1
        if self.uses[key] == 1 and key not in self.weights:
            self.sizes[key] = size
            self.now += size
            self.peak = max(self.peak, self.now)

    def let_go(self, key: int) -> None:
        self.uses[key] -= 1
        if self.uses[key] == 0 and key not in self.weights:
            self.now -= self.sizes.pop(key)


class _Held:
    """A saved tensor, for as long as a graph holds it."""

    def __init__(self, tensor: Tensor, owner: LiveBytes) -> None:
        # detached: a node that holds its own output by name would hold itself
        self.tensor, self.owner, self.key = tensor.detach(), owner, tensor.untyped_storage()._cdata
        owner.take(self.key, tensor.untyped_storage().nbytes())

    def __del__(self) -> None:
        self.owner.let_go(self.key)


def measure(module: nn.Module, run: Callable[[Tensor], Any], x: Tensor) -> tuple[int, int]:
    """Live bytes after forward, and at the peak of forward and backward."""
    with LiveBytes(list(module.parameters())) as live:
        y = run(x)
        after_forward = live.now
        y.sum().backward()  # a sum saves nothing: hidden states are not held on the loss's account
    return after_forward, live.peak


BATCH, WIDTH, LAYERS, SEGMENT = 2, 8, 2, 25
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"dropout": 0.5},
    "bidirectional": {"bidirectional": True},
}


def peak_apart(num_steps: int, options: dict[str, Any]) -> int:
    """The peak, apart from features, hidden states (those between layers too), stored states and masks."""
    rnn = SegmentedRNN(nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True, **options).double(), SEGMENT)
    x = torch.randn(BATCH, num_steps, WIDTH, dtype=torch.float64, requires_grad=True)
    _, peak = measure(rnn, lambda x: rnn(x)[0], x)
    features = x.numel() * FLOAT64
    directions = 2 if options.get("bidirectional") else 1
    states = num_steps // SEGMENT * LAYERS * directions * 2 * BATCH * WIDTH * FLOAT64
    between_layers = features * directions if directions == 2 else 0
    masks = BATCH * num_steps * WIDTH if options.get("dropout") else 0
    return peak - features - states - between_layers - masks


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_activations_of_2000_steps_are_those_of_500(options: dict[str, Any]) -> None:
    short, long = peak_apart(500, options), peak_apart(2000, options)
    assert short > 0
    assert long <= 1.1 * short


def test_plain_network_for_comparison() -> None:
    """The measurement sees what it should: the network itself needs four times as much for four times as many steps,
    and ten times what segments need."""
    core = nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True).double()
    peaks = [
        measure(core, lambda x: core(x)[0], torch.randn(BATCH, num_steps, WIDTH, dtype=torch.float64))[1]
        for num_steps in (500, 2000)
    ]
    assert peaks[1] == pytest.approx(4 * peaks[0], rel=0.05)
    assert peaks[0] > 10 * peak_apart(500, {})


def test_after_forward_inputs_states_and_the_last_segment_are_held() -> None:
    core = nn.LSTM(WIDTH, WIDTH, batch_first=True).double()
    rnn = SegmentedRNN(core, SEGMENT)
    x = torch.randn(BATCH, 500, WIDTH, dtype=torch.float64, requires_grad=True)
    after_forward, _ = measure(rnn, lambda x: rnn(x)[0], x)
    last = torch.randn(BATCH, SEGMENT, WIDTH, dtype=torch.float64, requires_grad=True)
    hx = [torch.randn(1, BATCH, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    of_last, _ = measure(core, lambda x: core(x, tuple(hx))[0], last)
    states = 500 // SEGMENT * 2 * BATCH * WIDTH * FLOAT64
    assert x.numel() * FLOAT64 + states <= after_forward
    # the last segment's graph saves its input by itself in both, and the state before it is counted twice
    assert after_forward <= x.numel() * FLOAT64 + states + of_last


def test_nested_levels_store_fewer_states() -> None:
    """A state much larger than what is saved per step: 100 + 10 states of 1,000 steps are held rather than 1,000."""

    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(0.5))

        def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
            state = x.new_zeros(1000) if state is None else state
            y = []
            for x_t in x.unbind(1):
                state = state * 0.9 + self.weight * x_t.sum()
                y.append(state[:2])
            return torch.stack(y)[None], state

    core = Sparse()
    x = torch.randn(1, 1000, 1)
    peaks = {
        str(levels): measure(core, lambda x, levels=levels: checkpointed_scan(core, x, None, levels)[0], x)[1]
        for levels in (1, 10, [100, 10, 1])
    }
    assert peaks["[100, 10, 1]"] < peaks["10"] / 2
    assert peaks["10"] < peaks["1"] / 5


def test_checkpointed_holds_its_arguments_only() -> None:
    module = nn.Sequential(nn.Linear(8, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 2))
    x = torch.randn(10, 8, requires_grad=True)
    after_forward, peak = measure(module, Checkpointed(module), x)
    assert after_forward == x.numel() * 4
    assert peak > 10 * 500 * 4


# ------------------------------------------------------------------ nothing grows from step to step


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize(("options", "num_steps"), [({}, 200), ({"bidirectional": True}, 40), ({"dropout": 0.5}, 40)])
def test_no_tensor_stays_over_steps_case_63(options: dict[str, Any], num_steps: int) -> None:
    rnn = SegmentedRNN(nn.LSTM(2, 3, 2, **options), [6, 3])
    head = Checkpointed(nn.Linear(3 * (2 if options.get("bidirectional") else 1), 1))
    optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.01)
    x, state, counts = torch.randn(10, 1, 2), None, []
    for step in range(num_steps):
        hidden, state = rnn(x, state)
        state = tuple(s.detach() for s in state)  # kept from step to step
        head(hidden).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        del hidden
        if step in (5, num_steps - 1):
            counts.append(live_tensors())
    assert counts[0] == counts[1]


def test_forward_without_backward_leaves_nothing() -> None:
    rnn = SegmentedRNN(nn.LSTM(2, 3, 2, dropout=0.5), [12, 4])
    x = torch.randn(16, 1, 2)
    rnn(x)
    before = live_tensors()
    for _ in range(20):
        rnn(x)
    assert live_tensors() == before


def test_memory_is_let_go_without_the_garbage_collector() -> None:
    """No cycle holds a graph: what backward used is gone when it returns."""
    core = nn.LSTM(2, 3)
    rnn = SegmentedRNN(core, 4)
    gc.disable()
    try:
        with LiveBytes(list(core.parameters())) as live:
            hidden, _ = rnn(torch.randn(16, 1, 2))
            hidden.sum().backward()
            del hidden
        assert live.now == 0
    finally:
        gc.enable()
