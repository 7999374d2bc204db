"""Layers that break what recomputation takes for granted: in place, with a memory, with caches, handed-through inputs.

All map (n, C, ...) to (n, C, ...).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seqckpt import Checkpointed, is_replaying

from .draws import Draw
from .norms import along_channels

__all__ = ["COUNTERS", "Around", "AuxiliaryLoss", "CachedWeight", "Counter", "awkward_layer", "in_place_layer"]

_BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class Counter(nn.Module):
    """A step counter in the formula: a buffer updated in place or put anew, or a plain attribute."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.tensor(0.7))
        self.count = 1
        if kind != "attribute":
            del self.count
            self.register_buffer("count", torch.ones((), dtype=torch.int64), persistent=kind != "not persistent")

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight / self.count
        if self.kind == "put anew":
            self.count = self.count + 1
        elif self.kind == "only in the first run":
            if not is_replaying():
                self.count += 1
        else:
            self.count += 1
        return y


class InPlace(nn.Module):
    """A layer that writes into its input, or into part of it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.tensor(0.8))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "mul_":
            return x.mul_(0.5)
        if self.kind == "add_ parameter":
            return x.add_(self.weight)
        if self.kind == "+=":
            x += self.weight
            return x
        if self.kind == "slice":
            x[:, 0] = self.weight
            return x
        if self.kind == "masked_fill_":
            return x.masked_fill_(x.detach() > 0.8, 0.8)
        return torch.relu_(x)


IN_PLACE_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "ReLU": lambda: nn.ReLU(inplace=True),
    "SiLU": lambda: nn.SiLU(inplace=True),
    "Hardswish": lambda: nn.Hardswish(inplace=True),
    "LeakyReLU": lambda: nn.LeakyReLU(0.2, inplace=True),
    "ELU": lambda: nn.ELU(inplace=True),
    "Hardtanh": lambda: nn.Hardtanh(-0.7, 0.7, inplace=True),
    "RReLU": lambda: nn.RReLU(inplace=True),
    "Dropout": lambda: nn.Dropout(0.3, inplace=True),
    "AlphaDropout": lambda: nn.AlphaDropout(0.3, inplace=True),
    **{kind: lambda kind=kind: InPlace(kind) for kind in ("mul_", "add_ parameter", "+=", "slice", "masked_fill_")},
    "relu_": lambda: InPlace("relu_"),
}


_CHANNEL_DROPOUT = {1: nn.Dropout1d, 2: nn.Dropout2d, 3: nn.Dropout3d}


def in_place_layer(draw: Draw, dims: int) -> nn.Module:
    channels = {"channel dropout": lambda: _CHANNEL_DROPOUT[dims](0.3, inplace=True)}
    return draw.one("in-place layer", IN_PLACE_LAYERS | channels)()


class HandsThrough(nn.Module):
    """Stochastic depth by torch's generator that returns its input itself where the branch is dropped."""

    def __init__(self, branch: nn.Module, per_row: bool) -> None:
        super().__init__()
        self.branch, self.per_row = branch, per_row

    def forward(self, x: Tensor) -> Tensor:
        if self.per_row:
            keep = torch.rand(len(x), *(1,) * (x.dim() - 1), dtype=x.dtype) < 0.6
            return x + self.branch(x) * keep / 0.6
        return x if torch.rand(()) < 0.5 else x + self.branch(x)


class CachedWeight(nn.Module):
    """A layer that computes a tensor from its parameter once per step and keeps it; `new_step()` begins a step."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, channels))
        self.cached: Tensor | None = None

    def new_step(self) -> None:
        self.cached = None

    def forward(self, x: Tensor) -> Tensor:
        if self.cached is None:
            self.cached = self.weight.exp() / self.weight.exp().sum()
        return x * along_channels(self.cached, x)


class AuxiliaryLoss(nn.Module):
    """A layer that keeps an auxiliary loss of the last call as an attribute."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, channels))
        self.loss: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = x * along_channels(self.weight, x)
        self.loss = y.square().mean()
        return y


class Around(nn.Module):
    """A branch, and something around it that is rarely thought of."""

    def __init__(self, branch: nn.Module, kind: str) -> None:
        super().__init__()
        self.branch = Checkpointed(branch) if kind == "nested Checkpointed" else branch
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        branch, kind = self.branch, self.kind
        over = tuple(range(2, x.dim()))
        if kind.startswith("torch checkpoint"):
            return checkpoint(branch, x, use_reentrant=kind.endswith("reentrant"))
        if kind == "twice":
            return branch(x) + branch(x.flip(-1))
        if kind == "branch broadcasts":
            return x + branch(x.mean(over, keepdim=True).expand(*x.shape[:2], *(3,) * len(over))).mean(
                over, keepdim=True
            )
        if kind == "input broadcasts":
            return branch(x) + x.mean(over, keepdim=True)
        if kind == "no_grad part":
            with torch.no_grad():
                gate = branch(x).sigmoid()
            return branch(x) * gate
        if kind == "frozen call":
            with torch.no_grad():
                return branch(x) + x
        if kind == "detach":
            return branch(x.detach()) + x
        if kind == "no autocast":
            with torch.autocast("cpu", enabled=False):
                return branch(x.float() if x.dtype == torch.bfloat16 else x)
        if kind == "except":
            try:
                return branch(x)
            except Exception:
                return x * 2
        return branch(x)  # nested Checkpointed


AROUND = (
    *("nested Checkpointed", "torch checkpoint", "torch checkpoint, reentrant", "twice", "branch broadcasts"),
    *("input broadcasts", "no_grad part", "frozen call", "detach", "no autocast", "except"),
)


def _halve(parameter: Tensor) -> None:
    parameter.grad.mul_(0.5)


class Hooked(nn.Module):
    """A branch with a hook that changes what it hooks into."""

    def __init__(self, branch: nn.Module, kind: str) -> None:
        super().__init__()
        self.branch = branch
        if kind == "forward":
            branch.register_forward_hook(lambda module, args, y: y * 1.1)
        elif kind == "pre":
            branch.register_forward_pre_hook(lambda module, args: (args[0] * 0.9,))
        elif kind == "backward":
            branch.register_full_backward_hook(lambda module, gx, gy: tuple(None if g is None else g * 2 for g in gx))
        elif kind == "backward pre":
            branch.register_full_backward_pre_hook(lambda module, gy: tuple(g * 3 for g in gy))
        elif kind == "parameter":
            for parameter in branch.parameters():
                parameter.register_hook(lambda g: g * 0.5)
        elif kind == "accumulated":
            for parameter in branch.parameters():
                parameter.register_post_accumulate_grad_hook(_halve)

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x)


class TensorHook(nn.Module):
    """A hook on a tensor in the middle."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1.5
        if y.requires_grad:
            y.register_hook(lambda g: g.clamp(-0.5, 0.5))
        return y


class Functional(nn.Module):
    """Drop-outs and pools as functions."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "dropout":
            return F.dropout(x, 0.3, self.training)
        if self.kind == "alpha_dropout":
            return F.alpha_dropout(x, 0.3, self.training)
        if self.kind == "feature_dropout":
            return F.dropout1d(x.flatten(2), 0.3, self.training).view(x.shape)
        return F.rrelu(x, training=self.training)


HOOKS = ("forward", "pre", "backward", "backward pre", "parameter", "accumulated")
COUNTERS = ("in place", "put anew", "not persistent", "attribute", "only in the first run")
FUNCTIONS = ("dropout", "alpha_dropout", "feature_dropout", "rrelu")


def awkward_layer(draw: Draw, channels: int, dims: int, branch: Callable[[], nn.Module]) -> Any:
    """One of the above."""
    kind = draw.one(
        "awkward",
        ("in place", "hands through", "around", "hooked", "tensor hook", "functional", "counter", "cache", "auxiliary"),
        (6, 3, 6, 2, 1, 2, 1, 0.5, 0.5),
    )
    if kind == "in place":
        return in_place_layer(draw, dims)
    if kind == "hands through":
        return HandsThrough(branch(), draw.chance("per row", 0.3))
    if kind == "around":
        inner = branch()  # torch's checkpoint updates buffers twice, so that a plain run with it is no measure
        kinds = [k for k in AROUND if not k.startswith("torch checkpoint") or not any(True for _ in inner.buffers())]
        return Around(inner, draw.one("around", kinds))
    if kind == "hooked":
        return Hooked(branch(), draw.one("hook", HOOKS))
    if kind == "functional":
        return Functional(draw.one("function", FUNCTIONS))
    if kind == "counter":
        return Counter(draw.one("counter", COUNTERS, (1, 1, 1, 0.5, 0.3)))
    return {"tensor hook": TensorHook, "cache": CachedWeight, "auxiliary": AuxiliaryLoss}[kind](
        *([] if kind == "tensor hook" else [channels])
    )
