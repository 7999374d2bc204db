"""Class weights, parameter groups and the learning rate over a run."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from seqckpt.errors import ConfigError, DataError
from seqckpt.training import build_optimiser, inverse_frequency, learning_rate_factor
from seqckpt.training.optimiser import learning_rate, load_optimiser_state, set_learning_rate


def test_an_absent_class_weighs_nothing_and_the_loss_is_finite() -> None:
    # Case 48: n_c = 0 gave infinite weights, and [0, nan, 0] after normalisation.
    weights = inverse_frequency(torch.tensor([5, 0, 3]))
    assert torch.allclose(weights, torch.tensor([8 / 15, 0.0, 8 / 9]))
    loss = nn.functional.cross_entropy(torch.randn(8, 3), torch.tensor([0] * 5 + [2] * 3), weight=weights)
    assert torch.isfinite(loss)


def test_equally_frequent_classes_weigh_one() -> None:
    assert torch.equal(inverse_frequency(torch.tensor([4, 4, 4, 4])), torch.ones(4))


def test_no_label_at_all_is_an_error() -> None:
    with pytest.raises(DataError, match=r"no frame of the training videos has a label"):
        inverse_frequency(torch.zeros(7, dtype=torch.long))


def test_biases_scales_and_frozen_parameters_do_not_decay() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4, 2), nn.Linear(2, 2))
    model[3].requires_grad_(False)
    decayed, others = build_optimiser(model, lr=0.1, weight_decay=0.5).param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.5, 0.0)
    assert {id(p) for p in decayed["params"]} == {id(model[0].weight), id(model[2].weight)}
    assert {id(p) for p in others["params"]} == {
        id(p) for p in (model[0].bias, model[1].weight, model[1].bias, model[2].bias)
    }


@pytest.mark.parametrize(("num_steps", "warmup"), [(1, 0.0), (1, 0.9), (10, 0.0), (10, 0.3), (100, 0.05)])
def test_the_learning_rate_rises_to_its_highest_once_and_falls(num_steps: int, warmup: float) -> None:
    factors = [learning_rate_factor(step, num_steps, warmup=warmup) for step in range(num_steps)]
    peak = factors.index(max(factors))
    assert max(factors) == 1.0
    assert all(0 < factor <= 1 for factor in factors)
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)


def test_parts_have_their_own_learning_rate() -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "rnn": nn.GRU(2, 2), "head": nn.Linear(2, 2)})
    optimiser = build_optimiser(model, lr=0.1, weight_decay=0.5, lr_factors={"encoder": 0.1, "head": 2.0})
    set_learning_rate(optimiser, 0.01)
    rates = {id(p): group["lr"] for group in optimiser.param_groups for p in group["params"]}
    for name, expected in (("encoder", 0.001), ("rnn", 0.01), ("head", 0.02)):
        assert all(rates[id(p)] == pytest.approx(expected) for p in model[name].parameters())
    assert len(rates) == sum(1 for _ in model.parameters())


def test_sgd_steps_by_hand() -> None:
    model = nn.ModuleDict({"head": nn.Linear(1, 1, bias=False)})
    optimiser = build_optimiser(model, "sgd", lr=0.5, weight_decay=0.0, momentum=0.5)
    weight = model["head"].weight
    with torch.no_grad():
        weight.fill_(1.0)
    values = []
    for _ in range(2):
        weight.grad = torch.full_like(weight, 0.25)
        optimiser.step()
        values.append(weight.item())
    assert values == [1 - 0.5 * 0.25, 1 - 0.5 * 0.25 - 0.5 * (0.25 + 0.5 * 0.25)]


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="no parameter of the model is to be trained"):
        build_optimiser(nn.Linear(2, 2).requires_grad_(False), lr=0.1, weight_decay=0.0)


def test_a_constant_rate_stays_where_it_rose_to() -> None:
    factors = [learning_rate_factor(step, 8, warmup=0.25, shape="constant") for step in range(8)]
    assert factors == [0.5, 1, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_moments_are_taken_up_by_name_and_settings_stay_new(kind: str) -> None:
    """Case 75: other factors make other groups, in another order; the old decay must not come back."""
    encoder, head = nn.Linear(3, 3), nn.Linear(3, 2)
    model = nn.ModuleDict({"encoder": encoder, "head": head})
    old = build_optimiser(model, kind, lr=0.1, weight_decay=0.01)
    head(encoder(torch.rand(4, 3))).sum().backward()
    set_learning_rate(old, 0.05)
    old.step()
    saved = copy.deepcopy(old.state_dict())
    new = build_optimiser(model, kind, lr=0.3, weight_decay=0.5, momentum=0.5, lr_factors={"head": 0.1})
    load_optimiser_state(new, saved)
    assert len(new.param_groups) == 4
    assert sorted(group["weight_decay"] for group in new.param_groups) == [0.0, 0.0, 0.5, 0.5]
    assert sorted(group["lr"] for group in new.param_groups) == pytest.approx([0.005, 0.005, 0.05, 0.05])
    assert learning_rate(new) == 0.05
    if kind == "sgd":
        assert all(group["momentum"] == 0.5 for group in new.param_groups)
    for parameter in model.parameters():
        assert new.state[parameter].keys() == old.state[parameter].keys()
        for key, value in old.state[parameter].items():
            assert torch.equal(new.state[parameter][key], value), key
