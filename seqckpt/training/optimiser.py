"""AdamW over the parameters of a model, and its learning rate over the steps of a run."""

from __future__ import annotations

import math

from torch import nn
from torch.optim import AdamW

__all__ = ["build_adamw", "learning_rate_factor"]


def build_adamw(model: nn.Module, *, lr: float, weight_decay: float) -> AdamW:
    """Build AdamW over what requires grad; only matrices and kernels decay, not biases and scales of normalisation."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.dim() >= 2], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW([group for group in groups if group["params"]], lr=lr)


def learning_rate_factor(step: int, num_steps: int, *, warmup: float) -> float:
    """Return the share of the highest learning rate at `step` (0 is the first) of `num_steps`.

    It rises in a straight line over the first `warmup` share of the steps and then falls along half a cosine, to
    nearly 0 at the last. A function of the step alone: nothing to save, and nothing to restore.

    >>> [round(learning_rate_factor(step, 10, warmup=0.2), 2) for step in range(10)]
    [0.5, 1.0, 1.0, 0.96, 0.85, 0.69, 0.5, 0.31, 0.15, 0.04]
    """
    num_rising = round(warmup * num_steps)
    if step < num_rising:
        return (step + 1) / num_rising
    return 0.5 * (1 + math.cos(math.pi * (step - num_rising) / max(1, num_steps - num_rising)))
