"""A few random cases of every attack in the suite, many of them by hand, and the attacks' own judgement tested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from seqckpt.errors import ReplayError

from .awkward_layers import AROUND, COUNTERS, HOOKS, IN_PLACE_LAYERS
from .comparison import Case, Report, attack, build
from .cores import CORES, make_core_case
from .draws import Draw
from .encoders import FORMS, make_encoder_case
from .frames import LAYOUTS
from .losses import CRITERIA, make_loss_case
from .random_layers import HOLDERS, SOURCES
from .recurrent import make_recurrent_case
from .steps import STEPS
from .vision_blocks import BLOCKS

Make = Callable[[Draw], Case]


def run(make: Make, seed: int, cases: int) -> Report:
    report = Report()
    for number in range(cases):
        report.add(number, *attack(make, seed, number))
    return report


@pytest.mark.parametrize(
    ("make", "cases"),
    [(make_encoder_case, 30), (make_recurrent_case, 10), (make_loss_case, 10), (make_core_case, 10)],
)
def test_a_few_cases(make: Make, cases: int) -> None:
    report = run(make, 2, cases)
    assert report.failures == []
    right = report.outcomes["bitwise"] + report.outcomes["to rounding"]
    assert right > cases / 2


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("make", "cases"),
    [(make_encoder_case, 10_000), (make_recurrent_case, 5000), (make_loss_case, 3000), (make_core_case, 3000)],
)
def test_many_cases(make: Make, cases: int) -> None:
    seed = 1
    report = run(make, seed, cases)
    print(f"seed {seed}", *report.lines(), sep="\n")
    assert report.failures == [], f"seed {seed}"


# ------------------------------------------------------------------ the attacks themselves

TABLES = {
    "form": (make_encoder_case, FORMS),
    "layout": (make_encoder_case, LAYOUTS),
    "around": (make_encoder_case, AROUND),
    "hook": (make_encoder_case, HOOKS),
    "counter": (make_encoder_case, COUNTERS),
    "in-place layer": (make_encoder_case, tuple(IN_PLACE_LAYERS)),
    "random source": (make_encoder_case, tuple(SOURCES)),
    "held in": (make_encoder_case, HOLDERS),
    "step": (make_encoder_case, STEPS),
    "vision block": (make_encoder_case, tuple(BLOCKS)),
    "criterion": (make_loss_case, tuple(CRITERIA)),
    "core": (make_core_case, tuple(CORES)),
}


def test_every_ingredient_is_drawn() -> None:
    drawn: dict[Make, set[str]] = {}
    for make in {make for make, _ in TABLES.values()}:
        drawn[make] = set()
        for number in range(500):
            drawn[make] |= {*build(make, 3, number)[1].ingredients}
    expected = [(make, f"{what}: {name}") for what, (make, names) in TABLES.items() for name in names]
    assert [name for make, name in expected if name not in drawn[make]] == []


def case_of(checkpointed_result: Callable[[nn.Linear], Any]) -> Make:
    """A case whose plain run doubles, and whose other run does what is given."""

    def make(draw: Draw) -> Case:
        model = nn.Linear(2, 2).double()

        def step(checkpointed: bool) -> Any:
            loss = checkpointed_result(model) if checkpointed else model.weight.sum() * 2
            loss.backward()
            return loss

        return Case(model, step, {})

    return make


def with_other_gradient(model: nn.Linear) -> torch.Tensor:
    return model.weight.sum() * 2 + (model.weight - model.weight.detach()).sum()


def with_a_draw(model: nn.Linear) -> torch.Tensor:
    torch.rand(())
    return model.weight.sum() * 2


def refused(model: nn.Linear) -> torch.Tensor:
    from seqckpt import Checkpointed

    bias = model.bias * 2
    inner = nn.Identity()
    inner.forward = lambda x: x * bias  # type: ignore[method-assign]
    Checkpointed(inner)(model.weight).sum().backward()
    raise AssertionError("not reached")


def failing(model: nn.Linear) -> torch.Tensor:
    raise ReplayError("raised by a test, not by the library")


@pytest.mark.parametrize(
    ("other", "kind", "message"),
    [
        (lambda model: model.weight.sum() * 2, "bitwise", ""),
        (lambda model: model.weight.sum() * (2 + 1e-14), "to rounding", "e-15"),
        (lambda model: model.weight.sum() * (2 + 1e-9), "WRONG", "result 0 is off by"),
        (with_other_gradient, "WRONG", "gradient of weight is off by 0.5"),
        (lambda model: model.weight.sum() * 2 + model.bias.sum() * 0, "WRONG", "gradient of bias: a tensor"),
        (with_a_draw, "WRONG", "torch's random state"),
        (refused, "refused", "not known in the first run"),
        (failing, "error", "raised by a test"),
    ],
)
def test_outcomes_are_told_apart(other: Callable[[nn.Linear], Any], kind: str, message: str) -> None:
    found, words, _ = attack(case_of(other), 1, 0)
    assert found == kind, words
    assert message in words


def test_a_case_can_be_run_alone() -> None:
    alone = attack(make_encoder_case, 2, 17)
    assert run(make_encoder_case, 2, 18).outcomes.total() == 18
    assert attack(make_encoder_case, 2, 17) == alone
