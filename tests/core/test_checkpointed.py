"""Checkpointed(module) is the module: arguments, results, buffers, dropout, state_dict; nested, many times, or never
gone backward through."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import Run, assert_same, run_once
from torch import Tensor, nn

from seqckpt import Checkpointed, is_replaying
from seqckpt.errors import ReplayError


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def hold(module: nn.Module, call: Callable[..., Any], *inputs: Any, tolerance: float | None = None) -> Run:
    """Bitwise, unless said: `call(module, *inputs)` and the same with the module checkpointed."""
    module = module.double()
    plain = run_once(copy.deepcopy(module), call, inputs)
    wrapped = run_once(copy.deepcopy(module), lambda m, *xs: call(Checkpointed(m), *xs), inputs)
    assert_same(wrapped, plain, tolerance=tolerance)
    return wrapped


def once(module: nn.Module, *inputs: Any) -> Any:
    return module(*inputs)


# ------------------------------------------------------------------ arguments and results


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: dict[str, Any], factor: float, *rest: Tensor, bias: Tensor | None = None) -> dict[str, Any]:
        y = self.linear(x["a"]) * factor + x["list"][0] + sum(rest)
        y = y if bias is None else y + bias
        return {"y": y, "more": [y.sin(), (y > 0, None, "text")], "phase": y.square()}


def test_nested_arguments_and_results() -> None:
    inputs = ({"a": randn(3, 4), "list": [randn(3, 4), 5]}, 2.0, randn(3, 4), randn(4))
    run = hold(Nested(), once, *inputs)
    assert run.result["more"][1][1:] == (None, "text")


def test_keyword_arguments() -> None:
    x = {"a": randn(3, 4), "list": [randn(3, 4)]}
    hold(Nested(), lambda m, x, bias: m(x, factor=3, bias=bias), x, randn(4))
    hold(Nested(), lambda m, x, bias: m(x, 3, bias=None), x, randn(4))


def test_input_without_gradient_case_22() -> None:
    """uint8 frames require none; the weights get theirs (a reentrant checkpoint froze them in silence)."""

    class FromBytes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, frames: Tensor) -> Tensor:
            return self.conv(frames.double() / 255)

    run = hold(FromBytes(), once, torch.randint(256, (2, 3, 6, 6), dtype=torch.uint8))
    assert all(grad is not None for grad in run.gradients.values())


def test_dict_of_heads_keeps_both_gradients_case_26() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.phase, self.tool = nn.Linear(4, 7), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"phase": self.phase(x), "tool": self.tool(x)}

    run = hold(Heads(), once, randn(5, 4))
    assert all(grad is not None and grad.any() for grad in run.gradients.values())


def test_only_some_results_in_the_loss() -> None:
    hold(Nested(), lambda m, x, z: m(x, 2.0, z)["more"][0], {"a": randn(3, 4), "list": [randn(3, 4)]}, randn(3, 4))


def test_result_that_is_an_argument() -> None:
    class Pass(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return y, x * y

    hold(Pass(), once, randn(3), randn(3))


def test_parts_frozen() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    for frozen in (module[0], module[1], module[2], module):
        frozen.requires_grad_(False)
        hold(module, once, randn(5, 4))


def test_trainable_tensor_from_elsewhere() -> None:
    """Found in the first run where its graph is made; refused where it comes up in the replay alone."""
    outside = randn(4)

    class Uses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * outside

    with pytest.raises(ReplayError, match=r"Uses 1 of 1 uses trainable tensors of shape \[\(4,\)\].*make them param"):
        Checkpointed(Uses())(randn(3, 4)).sum().backward()


# ------------------------------------------------------------------ the module's names and copies


def test_state_dict_and_copies() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    wrapped = Checkpointed(Checkpointed(module))
    assert list(wrapped.state_dict()) == list(module.state_dict())
    wrapped.load_state_dict(copy.deepcopy(module).state_dict(), strict=True)
    for twin in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert list(twin.state_dict()) == list(module.state_dict())
        twin(torch.randn(3, 4)).sum().backward()


# ------------------------------------------------------------------ buffers


class Counter(nn.Module):
    """A counter that the output depends on: a replay must see the value that the first run saw."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        y = x * self.weight * self.count.clone() + self.mean  # a copy: autograd saves it
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)  # assigned anew rather than changed in place
        return y


MODULES: dict[str, Callable[[], nn.Module]] = {
    "counter": Counter,
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)),
    "cumulative batch norm": lambda: nn.Sequential(nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 4)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    "dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)),
    "all": lambda: nn.Sequential(
        Counter(),
        nn.Dropout(0.2),
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        nn.BatchNorm1d(4),
        Counter(),
    ),
}
each_module = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)


@each_module
def test_buffers_after_forward_and_backward(module: Callable[[], nn.Module]) -> None:
    hold(module(), once, randn(5, 4))


@each_module
def test_buffers_after_forward_alone(module: Callable[[], nn.Module]) -> None:
    """No replay at all: the first run's update counts."""
    plain = module().double()
    twin = copy.deepcopy(plain)
    x = randn(5, 4)
    for _ in range(3):
        torch.manual_seed(2)
        plain(x)
        torch.manual_seed(2)
        Checkpointed(twin)(x)
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), twin.buffers(), strict=True))


@each_module
def test_one_module_many_times_in_one_graph(module: Callable[[], nn.Module]) -> None:
    """Calls in a row, each with the buffers of its own time, one of them never gone backward through."""

    def thrice(m: nn.Module, x: Tensor, y: Tensor) -> Any:
        a = m(x)
        b = m(a.tanh())
        m(y)
        return m(b.tanh() + y)

    # a spectral norm uses its weight twice per call: summed per call here, all in a row in the plain graph
    hold(module(), thrice, randn(5, 4), randn(5, 4), tolerance=1e-12)


@each_module
@pytest.mark.parametrize("retained", [1, 3])
def test_several_replays(module: Callable[[], nn.Module], retained: int) -> None:
    plain = module().double()
    twin = copy.deepcopy(plain)
    x = randn(5, 4)
    grads = []
    for run in (plain, Checkpointed(twin)):
        x.grad = None
        torch.manual_seed(2)
        y = run(x).square().sum()
        for _ in range(retained):
            y.backward(retain_graph=True)
        run(x)  # forward after backward starts from where the plain run would
        grads.append(x.grad)
    assert torch.equal(*grads)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), twin.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), twin.buffers(), strict=True))


@each_module
@pytest.mark.parametrize("depth", [2, 3])
def test_nested(module: Callable[[], nn.Module], depth: int) -> None:
    def deep(m: nn.Module, x: Tensor) -> Any:
        if isinstance(m, Checkpointed):
            for _ in range(depth - 1):
                m = Checkpointed(m)
        return m(x)

    hold(module(), deep, randn(5, 4))


@each_module
def test_modules_within_a_checkpointed_one(module: Callable[[], nn.Module]) -> None:
    plain = nn.Sequential(module(), nn.Tanh(), module()).double()
    twin = copy.deepcopy(plain)
    wrapped = Checkpointed(nn.Sequential(Checkpointed(twin[0]), nn.Tanh(), Checkpointed(twin[2])))
    x = randn(5, 4)
    runs = [run_once(plain, once, (x,)), run_once(twin, lambda m, x: wrapped(x), (x,))]
    assert_same(*runs)


def test_batch_norm_numbers_case_34() -> None:
    """Worked out on paper: momentum 0.1, chunk mean 1; a second update would show as 0.19."""
    for replays, steps, expected in [(1, 1, 0.1), (0, 1, 0.1), (2, 1, 0.1), (1, 3, 0.271)]:
        norm = nn.BatchNorm1d(1, momentum=0.1)
        run = Checkpointed(norm)
        for _ in range(steps):
            y = run(torch.tensor([[0.0], [2.0]], requires_grad=True)).square().sum()
            for _ in range(replays):
                y.backward(retain_graph=True)
        assert norm.running_mean.item() == pytest.approx(expected, abs=1e-6)  # float32
        assert norm.num_batches_tracked == steps
        assert norm.momentum == 0.1
    norm = nn.BatchNorm1d(1, momentum=None)
    for mean in (1.0, 4.0, 10.0):
        Checkpointed(norm)(torch.tensor([[mean - 1], [mean + 1]], requires_grad=True)).sum().backward()
    assert norm.running_mean.item() == pytest.approx(5.0, abs=1e-5)  # the mean of the means, not of doubled updates


def test_counter_values_in_replays() -> None:
    class Seen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.seen: list[tuple[bool, float]] = []

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            self.seen.append((is_replaying(), self.count.item()))
            return x * self.count

    module = Seen()
    a, b = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    run = Checkpointed(module)
    y, z = run(a), run(b)
    y.backward()
    z.backward()
    assert module.seen == [(False, 1), (False, 2), (True, 1), (True, 2)]
    assert (a.grad, b.grad, module.count) == (1, 2, 2)


# ------------------------------------------------------------------ dropout


def test_finite_differences_with_the_mask_pinned_case_39() -> None:
    module = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 1), nn.Dropout(0.5)).double()
    run, x = Checkpointed(module), randn(6, 4).detach()

    def loss() -> Tensor:
        torch.manual_seed(3)
        return run(x).square().sum()

    loss().backward()
    weight, step = module[0].weight, 1e-6
    with torch.no_grad():
        for i in range(4):
            weight[i, 1] += step
            above = loss()
            weight[i, 1] -= 2 * step
            slope = (above - loss()) / (2 * step)
            weight[i, 1] += step
            # central differences in float64 err by about step^2 + 1e-16 / step; the case asks for 1e-3
            assert abs(slope - weight.grad[i, 1]) < 1e-6 * max(1.0, abs(slope))


def test_no_gradient_no_replay_case_30() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    calls: list[bool] = []
    module.register_forward_pre_hook(lambda *_: calls.append(is_replaying()))
    with torch.no_grad():
        Checkpointed(module)(torch.randn(2, 4))
    with torch.inference_mode():
        Checkpointed(module)(torch.randn(2, 4))
    Checkpointed(module.requires_grad_(False))(torch.randn(2, 4))
    assert calls == [False] * 3
