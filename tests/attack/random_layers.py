"""Layers that draw random numbers: from every source, held in every place, used in every way.

All map (n, C, ...) to the same shape.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .draws import Draw

__all__ = ["random_layer", "torch_noise"]

_HELD: dict[str, Any] = {}
"""Generators of the present case that no module holds: globals of this file."""


def _from_global() -> float:
    return _uniform(_HELD["generator"])


def _uniform(generator: Any) -> float:
    """One number from any generator; `random` and `np.random` themselves are the global ones."""
    if isinstance(generator, torch.Generator):
        return float(torch.rand((), generator=generator))
    if isinstance(generator, np.random.RandomState):
        return float(generator.random_sample())
    return float(torch.rand(())) if generator is torch else float(generator.random())


SOURCES: dict[str, Callable[[Draw], Any]] = {
    "torch": lambda draw: torch,
    "Python's random": lambda draw: random,
    "NumPy's global": lambda draw: np.random,
    "own torch.Generator": lambda draw: draw.generator("torch.Generator", lambda s: torch.Generator().manual_seed(s)),
    "own np Generator": lambda draw: draw.generator("np Generator", np.random.default_rng),
    "own random.Random": lambda draw: draw.generator("random.Random", random.Random),
    "own np RandomState": lambda draw: draw.generator("np RandomState", np.random.RandomState),
}

HOLDERS = ("attribute", "closure", "list", "object", "partial", "module global")


class DrawnOutside(nn.Module):
    """A layer whose function hangs on numbers from `generator`, reached as `holder` says."""

    def __init__(self, generator: Any, holder: str, use: str, channels: int) -> None:
        super().__init__()
        self.use = use
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, channels))
        if holder == "attribute":
            self.generator = generator
        elif holder == "list":
            self.held = [generator]
        elif holder == "object":
            self.held = SimpleNamespace(inner={"generator": generator})
        elif holder == "closure":
            self.uniform = lambda: _uniform(generator)
        elif holder == "partial":
            self.uniform = partial(_uniform, generator)
        else:
            _HELD["generator"] = generator
        self.holder = holder

    def draw(self) -> float:
        if self.holder == "attribute":
            return _uniform(self.generator)
        if self.holder in ("list", "object"):
            return _uniform(self.held[0] if self.holder == "list" else self.held.inner["generator"])
        return _from_global() if self.holder == "module global" else self.uniform()

    def forward(self, x: Tensor) -> Tensor:
        u = self.draw()
        weight = self.weight.view(-1, *(1,) * (x.dim() - 2))
        if self.use == "scale":
            return x * weight * (0.5 + u)
        if self.use == "skip":
            return x if u < 0.5 else x * weight
        if self.use == "array":
            noise = np.full(x.shape[1], u) + np.arange(x.shape[1])
            return x * weight + torch.from_numpy(noise).to(x.dtype).view(weight.shape)
        if self.use == "shift":
            return x * weight + x.roll(int(u * 3), -1)
        mask = torch.tensor([float(self.draw() < 0.7) for _ in range(x.shape[1])], dtype=x.dtype)
        return (x * weight).tanh() * mask.view(weight.shape)


class TorchNoise(nn.Module):
    """Randomness of torch's own that is not a dropout layer."""

    def __init__(self, use: str, channels: int) -> None:
        super().__init__()
        self.use = use
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, channels))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.view(-1, *(1,) * (x.dim() - 2))
        if self.use == "randn_like":
            return x * weight + 0.3 * torch.randn_like(x)
        if self.use == "rand of shape":
            return x * weight * torch.rand(x.shape, dtype=x.dtype)
        if self.use == "randperm of channels":
            return x * weight + x[:, torch.randperm(x.shape[1])]
        if self.use == "randperm of rows":
            return x * weight + 0.5 * x[torch.randperm(len(x))].detach()
        if self.use == "empty_like bernoulli":
            return x * weight * torch.empty_like(x).bernoulli_(0.7)
        if self.use == "multinomial":
            return x * weight + x[:, torch.multinomial(torch.ones(x.shape[1]), 1)]
        if self.use == "gumbel softmax":
            return x * F.gumbel_softmax(self.weight, tau=0.7).view(weight.shape)
        if self.use == "functional dropout":
            return F.dropout(x * weight, 0.4, self.training)
        return x * weight * torch.nn.init.trunc_normal_(torch.empty(x.shape[1], dtype=x.dtype)).view(weight.shape)


_TORCH_USES = (
    *("randn_like", "rand of shape", "randperm of channels", "randperm of rows", "empty_like bernoulli"),
    *("multinomial", "gumbel softmax", "functional dropout", "trunc_normal_"),
)


def torch_noise(draw: Draw, channels: int) -> nn.Module:
    return TorchNoise(draw.one("torch noise", _TORCH_USES), channels)


def random_layer(draw: Draw, channels: int) -> nn.Module:
    """A layer that draws from a source, held somewhere, for some use."""
    generator = draw.one("random source", SOURCES)(draw)
    holder = draw.one("held in", HOLDERS)
    return DrawnOutside(
        generator, holder, draw.one("random use", ("scale", "skip", "array", "shift", "mask")), channels
    )
