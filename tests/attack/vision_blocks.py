"""Blocks of known vision networks, as model zoos write them, small; all map (n, C, ...) to (n, C, ...)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .draws import Draw

__all__ = ["vision_block"]

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_POOL = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}
Norm = Callable[[int], nn.Module]


class DropPath(nn.Module):
    """Stochastic depth per row, the way timm writes it."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0 or not self.training:
            return x
        mask = x.new_empty((len(x),) + (1,) * (x.dim() - 1)).bernoulli_(1 - self.rate)
        return x * mask.div_(1 - self.rate)


class Basic(nn.Module):
    """ResNet's: two convolutions, the sum in place, ReLU in place."""

    def __init__(self, channels: int, dims: int, norm: Norm, rate: float) -> None:
        super().__init__()
        conv = CONV[dims]
        self.conv1, self.norm1 = conv(channels, channels, 3, padding=1, bias=False), norm(channels)
        self.conv2, self.norm2 = conv(channels, channels, 3, padding=1, bias=False), norm(channels)
        self.act, self.drop = nn.ReLU(inplace=True), DropPath(rate)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm1(self.conv1(x)))
        y = self.drop(self.norm2(self.conv2(y)))
        y += x
        return self.act(y)


class ConvNeXt(nn.Module):
    """Depthwise convolution, LayerNorm over channels last, two linear layers, layer scale, stochastic depth."""

    def __init__(self, channels: int, dims: int, norm: Norm, rate: float) -> None:
        super().__init__()
        self.depthwise = CONV[dims](channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 0.5))
        self.drop = DropPath(rate)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(x).movedim(1, -1)
        y = self.gamma * self.down(F.gelu(self.up(self.norm(y))))
        return x + self.drop(y.movedim(-1, 1))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, dims: int, hard: bool) -> None:
        super().__init__()
        self.pool = _POOL[dims](1)
        self.reduce, self.expand = CONV[dims](channels, 2, 1), CONV[dims](2, channels, 1)
        self.act = nn.ReLU(inplace=True) if hard else nn.SiLU(inplace=True)
        self.gate = nn.Hardsigmoid(inplace=True) if hard else nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(self.act(self.reduce(self.pool(x)))))


class MBConv(nn.Module):
    """EfficientNet's (SiLU) and MobileNetV3's (Hardswish) inverted residual."""

    def __init__(self, channels: int, dims: int, norm: Norm, rate: float, *, hard: bool = False) -> None:
        super().__init__()
        conv, wide = CONV[dims], 2 * channels
        act = (lambda: nn.Hardswish(inplace=True)) if hard else (lambda: nn.SiLU(inplace=True))
        self.block = nn.Sequential(
            nn.Sequential(conv(channels, wide, 1, bias=False), norm(wide), act()),
            nn.Sequential(conv(wide, wide, 3, padding=1, groups=wide, bias=False), norm(wide), act()),
            SqueezeExcite(wide, dims, hard),
            nn.Sequential(conv(wide, channels, 1, bias=False), norm(channels)),
        )
        self.drop = DropPath(rate)

    def forward(self, x: Tensor) -> Tensor:
        result = self.drop(self.block(x))
        result += x
        return result


class RegNet(nn.Module):
    """Grouped convolution, squeeze and excitation, ReLU in place after the sum."""

    def __init__(self, channels: int, dims: int, norm: Norm, rate: float) -> None:
        super().__init__()
        conv = CONV[dims]
        self.body = nn.Sequential(
            nn.Sequential(conv(channels, channels, 1, bias=False), norm(channels), nn.ReLU(inplace=True)),
            nn.Sequential(conv(channels, channels, 3, padding=1, groups=2, bias=False), norm(channels), nn.ReLU(True)),
            SqueezeExcite(channels, dims, hard=False),
            nn.Sequential(conv(channels, channels, 1, bias=False), norm(channels)),
        )
        self.proj = nn.Sequential(conv(channels, channels, 1, bias=False), norm(channels))
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.proj(x) + self.body(x))


class Transformer(nn.Module):
    """ViT's: class token, position embedding, attention with dropout, MLP; back to the picture's shape."""

    def __init__(self, channels: int, dims: int, norm: Norm, rate: float) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, channels) * 0.3)
        self.position = nn.Parameter(torch.randn(1, 2, channels) * 0.3)
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attention = nn.MultiheadAttention(channels, 2, dropout=rate, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(channels, 2 * channels),
            nn.GELU(),
            nn.Dropout(rate, inplace=True),
            nn.Linear(2 * channels, channels),
        )
        self.drop = DropPath(rate)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1)
        tokens = tokens + torch.cat([self.position[:, :1], self.position[:, 1:].expand(-1, tokens.shape[1] - 1, -1)], 1)
        y = self.norm1(tokens)
        tokens = tokens + self.drop(self.attention(y, y, y, need_weights=False)[0])
        tokens = tokens + self.drop(self.mlp(self.norm2(tokens)))
        return tokens[:, 1:].transpose(1, 2).reshape(x.shape) + tokens[:, 0].view(*x.shape[:2], *(1,) * (x.dim() - 2))


class Swin(nn.Module):
    """Shifted windows over the last dimension, relative position bias, attention mask in a buffer."""

    def __init__(self, channels: int, dims: int, norm: Norm, rate: float) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(channels),
            nn.Linear(channels, 3 * channels),
            nn.Linear(channels, channels),
        )
        self.bias_table = nn.Parameter(torch.randn(3) * 0.2)
        self.register_buffer("index", torch.arange(2)[:, None] - torch.arange(2)[None] + 1, persistent=False)
        self.rate, self.drop = rate, DropPath(rate)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x.movedim(1, -1))
        pad = y.shape[-2] % 2
        rolled = F.pad(y, (0, 0, 0, pad)).roll(-1, -2)
        windows = rolled.reshape(-1, 2, y.shape[-1])
        q, k, v = self.qkv(windows).chunk(3, -1)
        bias = self.bias_table[self.index].to(q.dtype)
        dropout = self.rate if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(len(q), 2, 2), dropout_p=dropout)
        back = self.out(attended).view(rolled.shape).roll(1, -2)[..., : y.shape[-2], :]
        return x + self.drop(back.movedim(-1, 1))


class Shuffle(nn.Module):
    """ShuffleNet's: half of the channels go through, then channels are shuffled."""

    def __init__(self, channels: int, dims: int, norm: Norm, rate: float) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(CONV[dims](half, half, 3, padding=1), norm(half), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        y = torch.cat([a, self.branch(b)], 1)
        return y.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


class Dense(nn.Module):
    """DenseNet's: what came before is joined, and reduced again."""

    def __init__(self, channels: int, dims: int, norm: Norm, rate: float) -> None:
        super().__init__()
        conv = CONV[dims]
        self.norm1, self.conv1 = norm(channels), conv(channels, 2, 3, padding=1)
        self.norm2, self.conv2 = norm(channels + 2), conv(channels + 2, channels, 1)
        self.relu, self.rate = nn.ReLU(inplace=True), rate

    def forward(self, x: Tensor) -> Tensor:
        new = F.dropout(self.conv1(self.relu(self.norm1(x))), self.rate, self.training)
        return self.conv2(self.relu(self.norm2(torch.cat([x, new], 1))))


class Inception(nn.Module):
    """Three branches, added up."""

    def __init__(self, channels: int, dims: int, norm: Norm, rate: float) -> None:
        super().__init__()
        conv = CONV[dims]
        self.a = nn.Sequential(conv(channels, channels, 1), norm(channels), nn.ReLU(inplace=True))
        self.b = nn.Sequential(conv(channels, channels, 3, padding=1), norm(channels), nn.ReLU(inplace=True))
        self.dropout = nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        return sum([self.a(x), self.dropout(self.b(x)), x])


BLOCKS = {
    "ResNet": Basic,
    "ConvNeXt": ConvNeXt,
    "EfficientNet": MBConv,
    "MobileNetV3": lambda *args: MBConv(*args, hard=True),
    "RegNet": RegNet,
    "ViT": Transformer,
    "Swin": Swin,
    "ShuffleNet": Shuffle,
    "DenseNet": Dense,
    "Inception": Inception,
}


def vision_block(draw: Draw, channels: int, dims: int, norm: Norm) -> nn.Module:
    """One of the above, with or without dropout."""
    return draw.one("vision block", BLOCKS)(channels, dims, norm, draw.random.choice([0.0, 0.3]))
