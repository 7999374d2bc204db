"""Tensors that outlive the piece that made them: a right gradient, or a refusal by name; never silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import hold_against
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, weight_norm
from torch.utils.checkpoint import checkpoint

from seqckpt import Checkpointed, ChunkedEncoder, checkpointed_scan
from seqckpt.core import Keep
from seqckpt.errors import ReplayError

X = torch.randn(1, 6, 3, 5, 5, dtype=torch.float64)


def in_chunks(module: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([module(part.clone()) for part in x[0].split(2)])


# ---------------------------------------------------------------- parametrize.cached()


def parametrized() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
        nn.Tanh(),
        nn.Flatten(),
        parametrizations.spectral_norm(nn.Linear(36, 5)),
        parametrizations.orthogonal(nn.Linear(5, 5)),
    ).double()


@pytest.mark.parametrize("keep", [Keep(), Keep(depth=2), Keep(chunks=2)], ids=str)
def test_weights_cached_around_an_encoder(keep: Keep) -> None:
    def cached(run: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[nn.Module, Tensor], Tensor]:
        def call(module: nn.Module, x: Tensor) -> Tensor:
            with parametrize.cached():
                return run(module, x)

        return call

    hold_against(
        cached(in_chunks),
        cached(lambda module, x: ChunkedEncoder(module, 2, keep=keep)(x)[0]),
        parametrized(),
        [X],
        tolerance=1e-12,
    )


@pytest.mark.parametrize("around_backward", [False, True])
def test_weights_cached_around_several_calls(around_backward: bool) -> None:
    """A copied module asks the cache by the identity of the one that it was copied from; hold_against copies."""

    def run(module: Any, x: Tensor) -> Tensor:
        with parametrize.cached():
            y = module(x[0]) + module(x[0] * 2)
            if around_backward:
                y.sum().backward()
                module_y = y.detach()
                return module_y.requires_grad_()
        return y

    hold_against(run, lambda module, x: run(Checkpointed(module), x), parametrized(), [X], tolerance=1e-12)
    assert not parametrize._cache


def test_weights_cached_over_time() -> None:
    module = parametrizations.weight_norm(nn.Linear(4, 4)).double()

    def run(scan: Callable[..., Any]) -> Callable[[nn.Module, Tensor], Tensor]:
        def call(module: nn.Module, x: Tensor) -> Tensor:
            with parametrize.cached():
                return scan(module, x)

        return call

    hold_against(
        run(lambda m, x: torch.cat([torch.tanh(m(part)) for part in x.split(2, 1)], 1)),
        run(lambda m, x: checkpointed_scan(lambda x, s: (torch.tanh(m(x)), s), x, None, [4, 2])[0]),
        module,
        [torch.randn(2, 8, 4, dtype=torch.float64)],
        tolerance=1e-12,
    )


# ---------------------------------------------------------------- attributes


class Caching(nn.Module):
    """Computes a tensor from its weight at first use, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 1, 1, dtype=torch.float64))
        self.linear = nn.Linear(75, 2).double()
        self.cached: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.cached is None:
            self.cached = torch.tanh(self.weight)
        return self.linear((x * self.cached).flatten(1))


def test_cache_of_one_piece() -> None:
    hold_against(lambda m, x: m(x[0]), lambda m, x: Checkpointed(m)(x[0]), Caching(), [X])


@pytest.mark.parametrize("num_chunks", [2, 3])
def test_cache_that_a_later_piece_uses_is_refused(num_chunks: int) -> None:
    with pytest.raises(ReplayError, match=r"Caching\.cached is a tensor that a checkpointed module keeps"):
        ChunkedEncoder(Caching(), 2)(X[:, : 2 * num_chunks]).sum().backward()


class Auxiliary(nn.Module):
    """Keeps a loss in an attribute, in a list, and by a hook, as people do."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.linear, self.way = nn.Linear(75, 2).double(), way
        self.loss: Any = None
        self.losses: list[Tensor] = []
        self.collected: dict[str, Tensor] = {}
        if way == "a hook":
            collected = self.collected
            self.linear.register_forward_hook(lambda m, args, result: collected.update(linear=result))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x.flatten(1))
        if self.way == "an attribute":
            self.loss = y.square().mean()
        if self.way == "a list":
            self.losses.append(y.square().mean())
        if self.way == "a new list":
            self.losses = [y.square().mean()]
        if self.way == "detached":
            self.loss = y.detach().square().mean()
        return y

    def kept(self) -> Tensor:
        tensors = [*self.losses, *self.collected.values(), *([] if self.loss is None else [self.loss])]
        return torch.stack([t.square().sum() for t in tensors]).sum()


WAYS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "one piece": lambda module, x: Checkpointed(module)(x[0]),
    "chunks": lambda module, x: ChunkedEncoder(module, 2)(x)[0],
}


@pytest.mark.parametrize("step", ["first", "second"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kept_in", ["an attribute", "a list", "a new list", "a hook"])
def test_auxiliary_loss_is_refused_by_name(kept_in: str, way: str, step: str) -> None:
    module = Auxiliary(kept_in)
    if step == "second":  # what was seen in the first step is remembered
        WAYS[way](module, X).sum().backward()
        module.losses.clear()
    loss = WAYS[way](module, X).sum() + module.kept()
    with pytest.raises(ReplayError, match=r"is a tensor that a checkpointed module keeps.*Return it as an output"):
        loss.backward()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kept_in", ["an attribute", "a list", "a new list", "a hook", "detached"])
def test_kept_tensors_that_no_loss_uses_do_no_harm(kept_in: str, way: str) -> None:
    plain = (lambda m, x: m(x[0])) if way == "one piece" else in_chunks
    expected, got = Auxiliary(kept_in), Auxiliary(kept_in)
    got.load_state_dict(expected.state_dict())
    for _ in range(2):
        for module, run in ((expected, plain), (got, WAYS[way])):
            run(module, X).square().sum().backward()
    assert torch.equal(got.linear.weight.grad, expected.linear.weight.grad)
    assert len(got.losses) == len(expected.losses)
    assert torch.equal(got.kept(), expected.kept())


def test_a_detached_tensor_may_be_used() -> None:
    module = Auxiliary("detached")
    (WAYS["chunks"](module, X).sum() + module.kept()).backward()
    assert not module.loss.requires_grad


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_weights_that_a_hook_writes_in_every_call() -> None:
    module = nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(75, 4)), nn.Tanh()).double()
    for way, plain in (("one piece", lambda m, x: m(x[0])), ("chunks", in_chunks)):
        gradients = []
        for run in (plain, WAYS[way]):
            module.zero_grad()
            run(module, X).square().sum().backward()
            gradients.append([p.grad for p in module.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    loss = WAYS["one piece"](module, X).sum() + module[1].weight.sum()
    with pytest.raises(ReplayError, match=r"1\.weight is a tensor that a checkpointed module keeps"):
        loss.backward()


# ---------------------------------------------------------------- and what else crosses the border


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning")
def test_a_checkpoint_that_works_with_plain_backward_only_is_refused_by_name() -> None:
    class Reentrant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.linear, x, use_reentrant=True)

    loss = Checkpointed(nn.Sequential(nn.Linear(3, 3), Reentrant()))(torch.randn(2, 3)).sum()
    with pytest.raises(ReplayError, match="give use_reentrant=False there"):
        loss.backward()


def test_inputs_that_no_loss_depends_on_have_no_gradient() -> None:
    """As in the plain run; zeros would let an optimiser with weight decay move a weight in front."""
    front = nn.Linear(2, 2)
    _, state = checkpointed_scan(
        lambda x, s: (x * 2, s * 3), front(torch.randn(1, 6, 2)), torch.randn(1, 2, requires_grad=True), 3
    )
    state.sum().backward()
    assert front.weight.grad is None
