"""Ranges of modules, checkpointed in place: the same function, and a clear word where a model is no row."""

from __future__ import annotations

import gc
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

from seqckpt.core.ranges import checkpoint_ranges
from seqckpt.errors import ReplayError, UsageError


class Row(nn.Module):
    def __init__(self, *, turns: str = "abc", factor: float = 1.0) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh()) for _ in range(3))
        self.turns, self.factor = turns, factor

    def forward(self, x: Tensor) -> Tensor:
        for turn in self.turns:
            x = getattr(self, turn)(x)
            if self.factor != 1:
                x = x * self.factor
        return x


def run(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    y = model(x)
    y.sum().backward()
    return [y.detach(), torch.get_rng_state(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("ranges", [["ab"], ["abc"], ["a", "bc"], ["a", "b", "c"], ["bc"], []])
def test_the_same_function_bitwise(ranges: list[str]) -> None:
    model, x = Row(), torch.randn(3, 4, dtype=torch.float64)
    model.double()
    plain = run(model, x)
    with checkpoint_ranges(model, [list(names) for names in ranges]):
        checkpointed = run(model, x)
        with torch.no_grad():
            model.eval()(x)
            model.train()
    assert len(plain) == len(checkpointed) == 8
    assert all(torch.equal(a, b) for a, b in zip(plain, checkpointed, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(plain, run(model, x), strict=True))


def test_several_calls_before_backward() -> None:
    model, x = Row(), torch.randn(3, 4)
    with checkpoint_ranges(model, ["ab"]):
        first, second = model(x), model(x)
        (first.sum() + second.sum()).backward()


@pytest.mark.parametrize(
    "model",
    [Row(turns="acb"), Row(turns="bac"), Row(turns="abb"), Row(factor=2.0)],
    ids=["order", "start", "twice", "between"],
)
def test_code_that_is_no_row_is_found(model: nn.Module) -> None:
    with checkpoint_ranges(model, ["ab"]), pytest.raises(ReplayError, match="the model's code is no row there"):
        model(torch.randn(3, 4))


class Shared(nn.Module):
    """Two layers with a further argument, and one without."""

    def __init__(self, *, same: bool = True) -> None:
        super().__init__()
        self.a, self.b, self.c, self.same = Scaled(), Scaled(), nn.Tanh(), same

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.c(self.b(self.a(x, scale=scale), scale=scale if self.same else scale + 1))


class Scaled(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        return super().forward(x) * scale


def test_further_arguments_are_shared() -> None:
    model, x, scale = Shared(), torch.randn(3, 4), torch.randn(4, requires_grad=True)
    model(x, scale).sum().backward()
    expected, scale.grad = scale.grad, None
    with checkpoint_ranges(model, ["abc"], sharing=["b"]):
        model(x, scale).sum().backward()
    assert torch.equal(scale.grad, expected)
    other = Shared(same=False)
    with checkpoint_ranges(other, ["abc"], sharing=["b"]), pytest.raises(ReplayError, match="other further"):
        other(x, scale)


def test_nothing_is_kept_alive_between_calls() -> None:
    model = Row()
    with checkpoint_ranges(model, ["abc"]):
        y = model(torch.randn(3, 4))
        alive = ref(y)
        del y
        gc.collect()
        assert alive() is None


def test_what_cannot_be_wrapped() -> None:
    model = Row()
    with pytest.raises(UsageError, match="no module 'd'"):
        checkpoint_ranges(model, ["ad"])
    with pytest.raises(UsageError, match="a is checkpointed in a range already"):
        checkpoint_ranges(model, ["ab", "a"])
    with checkpoint_ranges(model, ["ab"]), pytest.raises(UsageError, match="b is checkpointed in a range already"):
        checkpoint_ranges(model, ["bc"])
    assert "forward" not in model.a.__dict__
    handle = model.b.register_forward_hook(lambda *_: None)
    with pytest.raises(UsageError, match="b has hooks"):
        checkpoint_ranges(model, ["ab"])
    with checkpoint_ranges(model, ["b"]):
        model(torch.randn(3, 4)).sum().backward()
    handle.remove()


def test_a_forward_of_the_instances_own_is_kept() -> None:
    model = Row()
    own = model.a.forward
    model.a.forward = lambda x: own(x) + 1  # type: ignore[method-assign]
    kept = model.a.forward
    plain = run(model, x := torch.randn(3, 4))
    with checkpoint_ranges(model, ["abc"]):
        checkpointed = run(model, x)
    assert all(torch.equal(a, b) for a, b in zip(plain, checkpointed, strict=True))
    assert model.a.forward is kept
