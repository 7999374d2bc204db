"""Optimisers over the parts of a model, and their learning rate over the steps of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from seqckpt.errors import ConfigError

__all__ = [
    "build_optimiser",
    "learning_rate",
    "learning_rate_factor",
    "load_optimiser_state",
    "set_learning_rate",
]


def build_optimiser(
    model: nn.Module,
    kind: str = "adamw",
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.9,
    lr_factors: Mapping[str, float] | None = None,
) -> Optimizer:
    """Build AdamW ("adamw") or SGD ("sgd") over what requires grad.

    Only matrices and kernels decay, not biases and scales of normalisation. `lr_factors` maps children of the model
    ("encoder") to factors of the learning rate of what is in them; others have 1. Each group holds its `lr_factor`, the
    `base_lr` that this is a factor of, and the names of its parameters.
    Raises ConfigError where nothing is to be trained.
    """
    factors = lr_factors or {}
    groups: dict[tuple[float, float], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decay = weight_decay if parameter.dim() >= 2 else 0.0
            groups.setdefault((decay, factors.get(name.partition(".")[0], 1.0)), []).append((name, parameter))
    if not groups:
        raise ConfigError("no parameter of the model is to be trained: freeze less of it")
    settings = [
        {"params": parameters, "weight_decay": decay, "lr_factor": factor, "base_lr": lr, "lr": lr * factor}
        for (decay, factor), parameters in groups.items()
    ]
    return SGD(settings, lr=lr, momentum=momentum) if kind == "sgd" else AdamW(settings, lr=lr)


def set_learning_rate(optimiser: Optimizer, lr: float) -> None:
    """Set the learning rate of every group, times its own factor."""
    for group in optimiser.param_groups:
        group["base_lr"], group["lr"] = lr, lr * group["lr_factor"]


def learning_rate(optimiser: Optimizer) -> float:
    """Return the learning rate that was set, before the factors of the groups."""
    return optimiser.param_groups[0]["base_lr"]


def load_optimiser_state(optimiser: Optimizer, state: Mapping[str, Any]) -> None:
    """Take up each parameter's state (moments, counts) from a snapshot, by its name, and the last learning rate.

    Decay, momentum and factors stay as this optimiser was built with: they may differ from those in the snapshot, and
    with them the groups.
    """
    own = optimiser.state_dict()
    by_name = {name: state["state"].get(key) for name, key in _name_keys(state).items()}
    kept = {key: by_name[name] for name, key in _name_keys(own).items() if by_name.get(name) is not None}
    optimiser.load_state_dict({**own, "state": kept})
    set_learning_rate(optimiser, state["param_groups"][0]["base_lr"])


def _name_keys(state: Mapping[str, Any]) -> dict[str, int]:
    """Return the key that each parameter has in an optimiser's state."""
    pairs = [zip(group["param_names"], group["params"], strict=True) for group in state["param_groups"]]
    return dict(chain.from_iterable(pairs))


def learning_rate_factor(step: int, num_steps: int, *, warmup: float, shape: str = "cosine") -> float:
    """Return the share of the highest learning rate at `step` (0 is the first) of `num_steps`.

    It rises in a straight line over the first `warmup` share of the steps. Then it falls, along half a cosine or in a
    straight line, to nearly 0 at the last step, or stays constant. A function of the step alone: nothing to save, and
    nothing to restore.

    >>> [round(learning_rate_factor(step, 10, warmup=0.2), 2) for step in range(10)]
    [0.5, 1.0, 1.0, 0.96, 0.85, 0.69, 0.5, 0.31, 0.15, 0.04]
    >>> [learning_rate_factor(step, 5, warmup=0.2, shape="linear") for step in range(5)]
    [1.0, 1.0, 0.75, 0.5, 0.25]
    """
    num_rising = round(warmup * num_steps)
    if step < num_rising:
        return (step + 1) / num_rising
    return _SHAPES[shape]((step - num_rising) / max(1, num_steps - num_rising))


_SHAPES: dict[str, Callable[[float], float]] = {
    "cosine": lambda passed: 0.5 * (1 + math.cos(math.pi * passed)),
    "linear": lambda passed: 1 - passed,
    "constant": lambda passed: 1.0,
}
