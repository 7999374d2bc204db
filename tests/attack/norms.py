"""Batch norm as it is met: torch's own, and norms whose training output depends on their running statistics."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .draws import Draw

__all__ = ["along_channels", "batch_norm"]

_BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def along_channels(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *(1,) * (x.dim() - 2))


def batch_norm(draw: Draw, channels: int, dims: int) -> nn.Module:
    """Batch norm as it is met: torch's, and those that read what torch's only writes."""
    kind = draw.one(
        "batch norm",
        ("plain", "momentum None", "no running", "not affine", "renorm", "reads after", "wrapper", "eval"),
        (6, 1, 1, 1, 0.5, 0.5, 0.5, 4),
    )
    plain = _BATCH_NORM[dims]
    if kind == "renorm":
        return Renorm(channels)
    if kind == "reads after":
        return ReadingNorm[dims](channels)
    norm = plain(
        channels,
        momentum=None if kind == "momentum None" else 0.1,
        affine=kind != "not affine",
        track_running_stats=kind != "no running",
    )
    if kind == "eval":
        norm.running_mean.uniform_(-0.3, 0.3)
        norm.running_var.uniform_(0.5, 1.5)
        norm.eval()
    return NormWrapper(norm) if kind == "wrapper" else norm


class Renorm(nn.Module):
    """Batch renormalisation: training output depends on the running statistics. Ioffe (2017)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_std", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        over = [0, *range(2, x.dim())]
        mean, std = x.mean(over), (x.var(over, unbiased=False) + 1e-3).sqrt()
        with torch.no_grad():
            r = (std / self.running_std).clamp(0.5, 2)
            d = ((mean - self.running_mean) / self.running_std).clamp(-2, 2)
        y = along_channels(self.weight, x) * ((x - along_channels(mean, x)) / along_channels(std, x))
        y = y * along_channels(r, x) + along_channels(d, x)
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean), 0.2)
            self.running_std.lerp_(std.to(self.running_std), 0.2)
        return y


class _Reads:
    """A batch norm that adds what it has become used to."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + along_channels(self.running_mean.clone(), x) + along_channels(self.running_var.sqrt(), x)


ReadingNorm = {dims: type(f"ReadingNorm{dims}d", (_Reads, norm), {}) for dims, norm in _BATCH_NORM.items()}


class NormWrapper(nn.Module):
    """A module around torch's own batch norm that reads its running mean in training."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        shift = self.norm.running_mean.clone()
        return self.norm(x) - along_channels(shift, x)
