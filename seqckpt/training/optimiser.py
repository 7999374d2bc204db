"""Optimisers over the parts of a model, and their learning rate over the steps of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from seqckpt.errors import ConfigError

__all__ = ["SCHEDULES", "build_optimiser", "learning_rate_factor", "set_learning_rate"]


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
    ("encoder") to factors of the learning rate of what is in them; others have 1. Each group holds its `lr_factor`.
    Raises ConfigError where nothing is to be trained.
    """
    factors = lr_factors or {}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decay = weight_decay if parameter.dim() >= 2 else 0.0
            groups.setdefault((decay, factors.get(name.partition(".")[0], 1.0)), []).append(parameter)
    if not groups:
        raise ConfigError("no parameter of the model is to be trained: freeze less of it")
    settings = [
        {"params": parameters, "weight_decay": decay, "lr_factor": factor, "lr": lr * factor}
        for (decay, factor), parameters in groups.items()
    ]
    return SGD(settings, lr=lr, momentum=momentum) if kind == "sgd" else AdamW(settings, lr=lr)


def set_learning_rate(optimiser: Optimizer, lr: float) -> None:
    """Set the learning rate of every group, times its own factor."""
    for group in optimiser.param_groups:
        group["lr"] = lr * group.get("lr_factor", 1.0)


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
SCHEDULES = tuple(_SHAPES)
