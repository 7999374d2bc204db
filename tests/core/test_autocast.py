"""Mixed precision: every gradient is there, states keep their dtype, and a replay runs under the forward's autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from custom_cores import Leaky
from reference import assert_same, cut_scan, given_state, run_once, sequence
from torch import Tensor, nn

from seqckpt import Checkpointed, SegmentedRNN, checkpointed_scan


def test_autocast_only_around_forward() -> None:
    """Backward runs outside the block; the replay is in it again."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    x = torch.randn(5, 4, requires_grad=True)

    def run(call: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[nn.Module, Tensor], Tensor]:
        def under_autocast(m: nn.Module, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return call(m, x)

        return under_autocast

    plain = run_once(model, run(lambda m, x: m(x)), (x,))
    assert plain.results[0].dtype == torch.bfloat16
    assert_same(run_once(model, run(lambda m, x: Checkpointed(m)(x)), (x,)), plain)


def test_autocast_only_around_backward() -> None:
    """Plain torch runs the backward itself under it; the replayed forward is not."""
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)), torch.randn(5, 4)
    grads = []
    for run in (model, Checkpointed(model)):
        model.zero_grad()
        y = run(x)
        with torch.autocast("cpu", torch.bfloat16):
            y.backward(torch.ones_like(y))
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


# ------------------------------------------------------------------ mixed precision


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.flatten().double(), b.flatten().double(), dim=0))


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2, "dropout": 0.5}])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("with_state", [False, True])
def test_autocast_bfloat16_cases_51_53(kind: Any, options: dict[str, Any], with_state: bool) -> None:
    """Every gradient is there (no cast cached without history), the state keeps its dtype over segments."""
    core = kind(4, 8, **options)
    x = sequence(core, 23, 2)
    state = given_state(core, 2) if with_state else None  # float32, while features may be bfloat16
    exact = run_once(core, lambda core, x, state: core(x, state), (x, state))

    def run(core: nn.Module, x: Tensor, state: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            features = x @ torch.eye(4)  # bfloat16, as an encoder's would be
            assert features.dtype == torch.bfloat16
            return SegmentedRNN(core, 7)(features, state)

    got = run_once(core, run, (x, state))
    assert len({t.dtype for t in got.results[1:]}) == 1
    for a, b in zip(got.results, exact.results, strict=True):
        # bfloat16 has 8 bits: each rounding is up to 4e-3, and they do not add up over 23 contracting steps
        assert (a.float() - b).abs().max() < 2e-2 * max(1, float(b.abs().max()))
    for name, grad in exact.gradients.items():
        assert got.gradients[name] is not None, name
        assert got.gradients[name].dtype == torch.float32
        assert cosine(got.gradients[name], grad) > 0.999, name


def test_autocast_custom_core_state_dtype_case_53() -> None:
    dtypes: list[torch.dtype] = []
    core = Leaky().eval()

    def spy(x: Tensor, state: Any) -> Any:
        y, state = core(x, state)
        dtypes.append(state.dtype)
        return y, state

    x = torch.randn(2, 20, 4)
    exact, _ = core(x, None)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = checkpointed_scan(spy, x, None, 7)
        twin, _ = cut_scan(core, x, None, [7, 7, 6])
    assert len(set(dtypes)) == 1
    assert torch.equal(y, twin)
    assert (y.float() - exact).abs().max() < 2e-2
    y.float().sum().backward()
    grads = [p.grad for p in core.parameters()]
    core.zero_grad()
    twin.float().sum().backward()
    for (name, parameter), grad in zip(core.named_parameters(), grads, strict=True):
        # casts of weights: one per segment here, one for all there, so bfloat16 sums are added in another precision
        assert cosine(parameter.grad, grad) > 0.999, name


def test_first_pass_without_gradient_in_the_same_autocast_case_51() -> None:
    """A validation pass fills the cache of casts without history, then the training step in the same block."""
    core = nn.Linear(4, 4)
    model, x = Checkpointed(core), torch.randn(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            model(x)
        model(x).float().sum().backward()
    assert core.weight.grad is not None
    assert core.bias.grad is not None
