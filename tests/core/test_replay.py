"""The primitive under everything: what surrounds a replay is what surrounded the first run, and is left as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from custom_cores import Leaky
from reference import assert_same, run_once
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from seqckpt import Checkpointed, SegmentedRNN, checkpointed_scan, is_replaying
from seqckpt.core.replay import Loop, replay_loop
from seqckpt.errors import ReplayError

PARTS: dict[str, Callable[[], tuple[nn.Module, nn.Module, tuple[int, ...]]]] = {
    "SegmentedRNN, custom core": lambda: (core := Leaky(), SegmentedRNN(core, 3), (2, 8, 4)),
    "SegmentedRNN, dropout": lambda: (core := nn.LSTM(4, 4, 2, dropout=0.5), SegmentedRNN(core, 3), (8, 2, 4)),
    "SegmentedRNN, one kernel": lambda: (core := nn.GRU(4, 4), SegmentedRNN(core, [4, 2]), (8, 2, 4)),
    "Checkpointed": lambda: (
        core := nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 4)),
        Checkpointed(core),
        (8, 4),
    ),
}
each_part = pytest.mark.parametrize("part", PARTS)


def make(part: str) -> tuple[nn.Module, nn.Module, Tensor]:
    module, wrapped, shape = PARTS[part]()
    wrapped.double()
    return module, wrapped, torch.randn(shape, dtype=torch.float64, requires_grad=True)


def first_of(results: Any) -> Tensor:
    return results[0] if isinstance(results, tuple) else results


# ------------------------------------------------------------------ random states


@each_part
def test_global_random_state_after_backward(part: str) -> None:
    """Backward draws nothing, as in the plain run, and draws made between are not disturbed."""
    _, wrapped, x = make(part)
    y = first_of(wrapped(x)).sum()
    after_forward = torch.get_rng_state()
    y.backward()
    assert torch.equal(torch.get_rng_state(), after_forward)


@each_part
def test_draws_between_forward_and_backward(part: str) -> None:
    """Another place in the random stream at the time of backward changes nothing."""
    grads = []
    module, wrapped, x = make(part)
    for between in (lambda: None, lambda: torch.rand(100), lambda: torch.manual_seed(77)):
        torch.manual_seed(1)
        x.grad = None
        wrapped.zero_grad()
        y = first_of(wrapped(x)).square().sum()
        between()
        y.backward()
        grads.append([x.grad, *(p.grad for p in module.parameters())])
    for other in grads[1:]:
        assert all(torch.equal(a, b) for a, b in zip(grads[0], other, strict=True))


def test_is_replaying() -> None:
    seen: list[bool] = []

    def run(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        seen.append(is_replaying())
        return x * 2, state

    y, _ = checkpointed_scan(run, torch.randn(1, 6, 2, requires_grad=True), None, 2)
    y.sum().backward()
    assert seen == [False] * 3 + [True] * 2
    assert not is_replaying()


# ------------------------------------------------------------------ autograd around it


@each_part
def test_backward_twice_with_retain_graph(part: str) -> None:
    module, wrapped, x = make(part)
    y = first_of(wrapped(x)).square().sum()
    y.backward(retain_graph=True)
    once = [p.grad.clone() for p in module.parameters()]
    buffers = [b.clone() for b in module.buffers()]
    y.backward()
    for parameter, grad in zip(module.parameters(), once, strict=True):
        assert torch.equal(parameter.grad, 2 * grad)
    assert all(torch.equal(a, b) for a, b in zip(module.buffers(), buffers, strict=True))


@each_part
def test_backward_twice_without_retain_graph_fails_as_in_plain_torch(part: str) -> None:
    _, wrapped, x = make(part)
    y = first_of(wrapped(x)).square().sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


@each_part
def test_grad_of_one_parameter_case_28(part: str) -> None:
    module, wrapped, x = make(part)
    y = first_of(wrapped(x)).square().sum()
    y.backward(retain_graph=True)
    for name, parameter in module.named_parameters():
        (grad,) = torch.autograd.grad(y, [parameter], retain_graph=True)
        assert torch.equal(grad, parameter.grad), name
    (grad,) = torch.autograd.grad(y, [x])
    assert torch.equal(grad, x.grad)


@each_part
def test_create_graph_is_refused_by_name_case_28(part: str) -> None:
    _, wrapped, x = make(part)
    y = first_of(wrapped(x)).square().sum()
    with pytest.raises(ReplayError, match=r"no second derivatives \(create_graph=True\): run them unchunked"):
        torch.autograd.grad(y, [x], create_graph=True)


@each_part
def test_hooks_of_parameters_fire_once_with_the_whole_gradient(part: str) -> None:
    module, wrapped, x = make(part)
    fired: dict[str, list[Tensor]] = {}
    after: list[str] = []
    for name, parameter in module.named_parameters():
        parameter.register_hook(lambda grad, name=name: fired.setdefault(name, []).append(grad.clone()))
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: after.append(name))
    first_of(wrapped(x)).square().sum().backward()
    names = [name for name, _ in module.named_parameters()]
    assert sorted(after) == sorted(names)
    for name, parameter in module.named_parameters():
        assert len(fired[name]) == 1, name
        assert torch.equal(fired[name][0], parameter.grad), name


@each_part
def test_hooks_may_change_the_gradient_and_are_there_afterwards(part: str) -> None:
    module, wrapped, x = make(part)
    parameter = next(module.parameters())
    twin = copy.deepcopy(wrapped)
    parameter.register_hook(lambda grad: grad * 3)
    for _ in range(2):
        for model in (wrapped, twin):
            torch.manual_seed(1)
            model.zero_grad()
            first_of(model(x)).square().sum().backward()
        assert torch.equal(parameter.grad, 3 * next(twin.parameters()).grad)


@each_part
def test_gradients_accumulate_over_calls(part: str) -> None:
    module, wrapped, x = make(part)
    module.eval()
    for _ in range(2):
        first_of(wrapped(x)).square().sum().backward()
    twice = [p.grad for p in module.parameters()]
    wrapped.zero_grad()
    (first_of(wrapped(x)).square().sum() * 2).backward()
    for a, p in zip(twice, module.parameters(), strict=True):
        assert (a - p.grad).abs().max() < 1e-10  # (g + g) and 2 g, g summed from scaled parts


@each_part
@pytest.mark.parametrize("hooks", ["save_on_cpu", "copies", "nothing changed"])
def test_saved_tensor_hooks_around_it(part: str, hooks: str) -> None:
    """What a replay starts from goes through the user's hooks, offloaded to disk or CPU like any saved tensor."""
    contexts: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "save_on_cpu": save_on_cpu,
        "copies": lambda: saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t.clone()),
        "nothing changed": nullcontext,
    }
    _, wrapped, x = make(part)
    plain = run_once(copy.deepcopy(wrapped), lambda m, x: first_of(m(x)), (x,))

    def run(model: nn.Module, x: Tensor) -> Tensor:
        with contexts[hooks]():
            return first_of(model(x))

    assert_same(run_once(wrapped, run, (x,)), plain)


def test_hooks_see_what_is_stored() -> None:
    packed: list[tuple[int, ...]] = []
    x = torch.randn(1, 6, 2, requires_grad=True)
    with saved_tensors_hooks(lambda t: packed.append(tuple(t.shape)) or t, lambda t: t):
        checkpointed_scan(lambda x, s: (x * 2 + s, s), x, torch.zeros(2), 2)
    assert packed.count((1, 6, 2)) == 1


# ------------------------------------------------------------------ what changes between forward and backward


@each_part
@pytest.mark.parametrize("first_mode", [True, False])
def test_mode_switched_between_forward_and_backward(part: str, first_mode: bool) -> None:
    module, wrapped, x = make(part)
    expected = run_once(copy.deepcopy(wrapped).train(first_mode), lambda m, x: first_of(m(x)), (x,))

    def run(model: nn.Module, x: Tensor) -> Tensor:
        y = first_of(model(x))
        model.train(not first_mode)
        return y

    assert_same(run_once(wrapped.train(first_mode), run, (x,)), expected)
    assert all(m.training is not first_mode for m in module.modules()), "the user's own switch was undone"


@each_part
def test_parameter_changed_in_place_is_refused(part: str) -> None:
    module, wrapped, x = make(part)
    y = first_of(wrapped(x)).sum()
    with torch.no_grad():
        next(module.parameters()).add_(1)
    with pytest.raises(ReplayError, match=r"changed in place between forward and backward \(version \d+, now \d+\)"):
        y.backward()


def test_parameter_changed_in_place_is_named() -> None:
    model = Checkpointed(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    y = model(torch.randn(3, 2)).sum()
    with torch.no_grad():
        model.module[1].bias.zero_()
    with pytest.raises(ReplayError, match=r"^1\.bias was changed in place"):
        y.backward()


@each_part
def test_input_changed_in_place_is_refused(part: str) -> None:
    _, wrapped, x = make(part)
    inner = x * 1
    y = first_of(wrapped(inner)).sum()
    inner.data  # noqa: B018 - .data would not be noticed; this is not it
    with torch.no_grad():
        inner.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
        y.backward()


@each_part
def test_frozen_between_forward_and_backward(part: str) -> None:
    """autograd decides at forward what needs a gradient; a later requires_grad_(False) does not break the backward."""
    module, wrapped, x = make(part)
    plain = run_once(copy.deepcopy(wrapped), lambda m, x: first_of(m(x)), (x,))
    frozen = next(module.parameters())

    def run(model: nn.Module, x: Tensor) -> Tensor:
        y = first_of(model(x))
        frozen.requires_grad_(False)
        return y

    got = run_once(wrapped, run, (x,))
    assert not frozen.requires_grad
    for name, grad in plain.gradients.items():
        if grad is not None and got.gradients[name] is not None:
            assert torch.equal(grad, got.gradients[name]), name


@each_part
def test_thawed_between_forward_and_backward(part: str) -> None:
    """What was frozen in forward gets no gradient, as in the plain run."""
    module, wrapped, x = make(part)
    late = next(module.parameters()).requires_grad_(False)
    y = first_of(wrapped(x)).sum()
    late.requires_grad_(True)
    y.backward()
    assert late.grad is None


# ------------------------------------------------------------------ exceptions


class Fails(nn.Module):
    """Draws, counts, changes its mode's statistics, and then fails in the call it is told to."""

    def __init__(self, fails_in: str) -> None:
        super().__init__()
        self.weight, self.fails_in = nn.Parameter(torch.ones(())), fails_in
        self.norm, self.dropout = nn.BatchNorm1d(2), nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        self.count += 1
        y = self.dropout(self.norm(x[0])[None]) * self.weight * self.count
        if self.fails_in == ("replay" if is_replaying() else "first run") and (is_replaying() or self.count == 2):
            raise KeyError("of the user's own")
        return y, state


def test_exception_in_first_run() -> None:
    core = Fails("first run")
    with pytest.raises(KeyError, match="of the user's own"):
        SegmentedRNN(core, 2)(torch.randn(1, 6, 2), None)
    assert not is_replaying()
    assert core.count == 2
    assert core.weight._backward_hooks is None


def test_exception_in_replay() -> None:
    core = Fails("replay")
    y, _ = SegmentedRNN(core, 2)(torch.randn(1, 6, 2), None)
    hook_calls: list[Tensor] = []
    core.weight.register_hook(hook_calls.append)
    hooks = dict(core.weight._backward_hooks)
    core.eval()  # the replay is in training mode, as forward was
    torch.manual_seed(4)
    before = [b.clone() for b in core.buffers()], torch.get_rng_state()
    with pytest.raises(KeyError, match="of the user's own"):
        y.sum().backward()
    assert not is_replaying()
    assert all(torch.equal(a, b) for a, b in zip(core.buffers(), before[0], strict=True))
    assert torch.equal(torch.get_rng_state(), before[1])
    assert not any(module.training for module in core.modules())
    assert dict(core.weight._backward_hooks) == hooks
    assert core.weight.grad is None
    assert torch.is_grad_enabled()
    core.fails_in = "never"
    SegmentedRNN(core.train(), 2)(torch.randn(1, 6, 2), None)[0].sum().backward()
    assert len(hook_calls) == 1


# ------------------------------------------------------------------ the loop itself


def test_weights_handed_to_run() -> None:
    """Weights given by name need not be leaves: their gradients leave the node once, as any input's."""
    base = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(6, 4, dtype=torch.float64)
    loop = Loop(
        run=lambda k, x, state, weights: (x @ weights[0], state),
        spans=[(0, 2), (2, 4), (4, 6)],
        weights=[base.tanh()],
        closed=True,
    )
    y, _ = replay_loop(loop, x, None)
    y.square().sum().backward()
    got, base.grad = base.grad, None
    weight = base.tanh()
    torch.cat([part @ weight for part in x.split(2)]).square().sum().backward()
    assert torch.equal(got, base.grad)


@pytest.mark.parametrize("num_kept", [0, 1, 2, 3, 9])
def test_num_kept(num_kept: int) -> None:
    calls: list[int] = []

    def run(k: int, x: Tensor, state: Any, weights: Any) -> tuple[Tensor, Any]:
        calls.append(k)
        return x.tanh(), state

    loop = Loop(run=run, spans=[(0, 2), (2, 4), (4, 6)], closed=True, num_kept=num_kept)
    x = torch.randn(6, 4, requires_grad=True)
    y, _ = replay_loop(loop, x, None)
    y.sum().backward()
    assert calls == [0, 1, 2, *range(2 - num_kept, -1, -1)]
    assert torch.allclose(x.grad, 1 - x.tanh().square())


def test_non_tensor_leaves_are_handed_on() -> None:
    y, state = checkpointed_scan(
        lambda x, s: ({"y": x["x"] * 2, "word": "text", "none": None}, s + 1),
        {"x": torch.randn(2, 6, requires_grad=True), "factor": 3},
        0,
        2,
    )
    assert (y["word"], y["none"], state) == ("text", None, 3)


def test_integer_outputs_need_no_gradient() -> None:
    y, state = checkpointed_scan(
        lambda x, s: ((x * 2, x > 0, x.long()), s + x.shape[1]),
        torch.randn(2, 6, requires_grad=True),
        torch.tensor(0),
        2,
    )
    assert [t.requires_grad for t in (*y, state)] == [True, False, False, False]
    y[0].sum().backward()
