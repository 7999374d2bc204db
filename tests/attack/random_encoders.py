"""Random per-frame encoders: blocks of every kind in containers of every kind, with heads of every form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from .awkward_layers import Around, awkward_layer, in_place_layer
from .draws import Draw
from .norms import batch_norm
from .random_layers import random_layer, torch_noise
from .vision_blocks import CONV, vision_block

__all__ = ["freeze", "make_encoder", "set_modes"]

_MAX_POOL = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
_AVERAGE_POOL = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}


class Row(nn.Module):
    """Blocks called one after the other, in the ways that people write that."""

    def __init__(self, blocks: Sequence[nn.Module], kind: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        if self.kind == "depends on values" and x.detach().abs().sum() < 0:
            return x
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i == 0 and self.kind == "with functions":
                x = torch.relu(x.mul(1.1)) + 0.1
        return x


class Head(nn.Module):
    """Features in many forms, of maps (n, C, ...)."""

    def __init__(self, kind: str, channels: int) -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(channels, 3)

    def forward(self, x: Tensor) -> Any:
        pooled = x.flatten(2).mean(-1)
        y = self.linear(pooled)
        if self.kind == "map":
            return x
        forms = {
            "dict": lambda: {"y": y, "pooled": pooled},
            "tuple": lambda: (y, pooled, y.argmax(-1)),
            "with None": lambda: {"y": y, "masks": None},
            "with a number": lambda: (y, 3),
            "with words": lambda: {"y": y, "name": "head", "flags": [True, 2.5]},
            "the same twice": lambda: (y, y),
            "a view and its base": lambda: {"all": y, "first": y[:, :1]},
            "nested": lambda: {"a": [y, {"b": (pooled,)}], "c": x.amax((-1,))},
        }
        return forms[self.kind]() if self.kind in forms else y


_HEADS = (
    *("linear", "map", "dict", "tuple", "with None", "with a number", "with words", "the same twice"),
    *("a view and its base", "nested"),
)


def _plain_block(draw: Draw, width: int, dims: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    """Convolution, norm, activation, pool, dropout; any of them in place, or missing."""
    layers: list[nn.Module] = [CONV[dims](width, width, 3, padding=1, bias=draw.random.random() < 0.5)]
    if draw.random.random() < 0.7:
        layers.append(norm(width))
    if draw.random.random() < 0.8:
        layers.append(
            draw.one("activation", ("ReLU", "ReLU in place", "GELU", "RReLU", "SiLU in place"), (3, 3, 1, 1, 1))
        )
        layers[-1] = {
            "ReLU": nn.ReLU(),
            "ReLU in place": nn.ReLU(inplace=True),
            "GELU": nn.GELU(),
            "RReLU": nn.RReLU(),
            "SiLU in place": nn.SiLU(inplace=True),
        }[layers[-1]]
    if draw.chance("pool", 0.25):
        layers.append(_MAX_POOL[dims](3, 1, 1) if draw.random.random() < 0.7 else _AVERAGE_POOL[dims](3, 1, 1))
        if draw.chance("in place after a pool", 0.5):
            layers.append(in_place_layer(draw, dims))
    if draw.chance("dropout", 0.35):
        kinds = (nn.Dropout, nn.AlphaDropout, nn.Dropout1d, nn.FeatureAlphaDropout)
        kinds = (*kinds[:2], *({1: kinds[2:], 2: (nn.Dropout2d,), 3: (nn.Dropout3d,)}[dims]))
        layers.append(draw.random.choice(kinds)(0.3, inplace=draw.random.random() < 0.4))
    return nn.Sequential(*layers)


def _block(draw: Draw, width: int, dims: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    kind = draw.one(
        "block", ("plain", "vision", "awkward", "random numbers", "torch's numbers"), (5, 3.5, 2.5, 0.6, 0.8)
    )
    if kind == "plain":
        block = _plain_block(draw, width, dims, norm)
    elif kind == "vision":
        block = vision_block(draw, width, dims, norm)
    elif kind == "awkward":
        block = awkward_layer(draw, width, dims, lambda: _plain_block(draw, width, dims, norm))
    else:
        return (random_layer if kind == "random numbers" else torch_noise)(draw, width)
    if draw.chance("parametrized", 0.08):
        _parametrize(draw, block)
    return block


def _parametrize(draw: Draw, block: nn.Module) -> None:
    kinds = ["weight norm", "old weight norm", "spectral norm", "old spectral norm"]
    if isinstance(block, Around) and block.kind.startswith("torch checkpoint"):
        kinds = kinds[:2]  # the others have buffers, which torch's checkpoint updates twice
    kind = draw.one("parametrization", kinds)
    functions = {
        "weight norm": parametrizations.weight_norm,
        "spectral norm": parametrizations.spectral_norm,
        "old weight norm": nn.utils.weight_norm,
        "old spectral norm": nn.utils.spectral_norm,
    }
    for module in list(block.modules()):
        if isinstance(module, (*CONV.values(), nn.Linear)) and not isinstance(
            module, nn.modules.linear.NonDynamicallyQuantizableLinear
        ):
            functions[kind](module)


def make_encoder(draw: Draw, dims: int, in_channels: int, *, fuse: bool) -> nn.Module:
    width = 4
    if fuse:

        def norm(channels: int) -> nn.Module:
            made = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims](channels)
            made.running_mean.uniform_(-0.3, 0.3)
            made.running_var.uniform_(0.5, 1.5)
            return made.eval()

    else:
        policy = draw.one("norm", ("batch", "group", "none"), (5, 2, 1))
        makers = {"group": lambda c: nn.GroupNorm(1, c), "none": lambda c: nn.Identity()}
        norm = makers.get(policy, lambda channels: batch_norm(draw, channels, dims))
    blocks: list[nn.Module] = []
    first = draw.one("first layer", ("convolution", "in place", "through"), (8, 1, 1))
    if first == "in place":
        blocks.append(in_place_layer(draw, dims))
    elif first == "through":
        blocks.append(nn.Identity() if draw.random.random() < 0.5 else nn.Dropout(0.3))
    blocks.append(CONV[dims](in_channels, width, draw.random.choice([1, 3]), padding=1))
    if fuse:
        blocks[-1] = nn.Sequential(blocks[-1], norm(width), nn.ReLU(inplace=draw.random.random() < 0.5))
    blocks += [_block(draw, width, dims, norm) for _ in range(draw.number(1, 4))]
    if draw.chance("a block twice", 0.06):
        blocks.append(blocks[-1])
    if draw.chance("tied weights", 0.06):
        convolutions = [
            m for b in blocks[1:] for m in b.modules() if type(m) is CONV[dims] and "weight" in m._parameters
        ]
        shapes: dict[Any, nn.Module] = {}
        for module in convolutions:
            module.weight = shapes.setdefault(module.weight.shape, module).weight
    head = draw.one("head", _HEADS, (8, 2, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 1))
    blocks.append(Head(head, width))
    if draw.chance("in place at the end", 0.06) and head in ("linear", "map"):
        blocks.append(in_place_layer(draw, dims))
    kind = draw.one(
        "container", ("Sequential", "loop", "with functions", "depends on values", "nested"), (5, 3, 1, 1, 2)
    )
    if kind == "Sequential":
        return nn.Sequential(*blocks)
    if kind == "nested":
        cut = draw.number(1, len(blocks) - 1)
        return nn.Sequential(nn.Sequential(*blocks[:cut]), nn.Sequential(*blocks[cut:]))
    return Row(blocks, kind)


def freeze(draw: Draw, encoder: nn.Module) -> None:
    parameters = list(encoder.parameters())
    kind = draw.one("frozen", ("nothing", "front", "some", "all but the end", "all"), (8, 1.5, 1, 1, 0.5))
    cut = {"front": len(parameters) // 2, "all but the end": len(parameters) - 2, "all": len(parameters)}.get(kind, 0)
    for i, parameter in enumerate(parameters):
        parameter.requires_grad_(not (i < cut or (kind == "some" and draw.random.random() < 0.4)))


def set_modes(draw: Draw, encoder: nn.Module) -> None:
    """Modes of training: of all, of a part; never of batch norms that were made with stored statistics."""
    kind = draw.one("mode", ("train", "eval", "a part in eval"), (10, 0.7, 1))
    if kind == "eval":
        encoder.eval()
    elif kind == "a part in eval":
        draw.random.choice(list(encoder.modules())).eval()
