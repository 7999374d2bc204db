"""Networks of the published comparisons: ResNet-1001 before activation, a DenseNet, a V-Net, network in network."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["CheckpointedByHand", "VNet", "build_densenet", "build_nin", "build_resnet"]


class _PreActivationBlock(nn.Module):
    """Bottleneck with batch norm and ReLU before each convolution. He et al., Identity Mappings (2016)."""

    def __init__(self, num_in: int, width: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.BatchNorm2d(num_in), nn.ReLU(), nn.Conv2d(num_in, width, 1, bias=False)),
            *(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, stride, 1, bias=False)),
            *(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, num_out, 1, bias=False)),
        )
        is_same = num_in == num_out and stride == 1
        self.shortcut = nn.Identity() if is_same else nn.Conv2d(num_in, num_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.body(x)


def build_resnet(depth: int = 1001) -> nn.Sequential:
    """Pre-activation ResNet for 32 x 32 images as one row of blocks; depth 9n + 2."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    num_in = 16
    for stage, width in enumerate((16, 32, 64)):
        for block in range((depth - 2) // 9):
            stride = 2 if stage and block == 0 else 1
            layers.append(_PreActivationBlock(num_in, width, 4 * width, stride))
            num_in = 4 * width
    return nn.Sequential(*layers, *_classifier(num_in))


class _DenseLayer(nn.Module):
    def __init__(self, num_in: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.BatchNorm2d(num_in), nn.ReLU(), nn.Conv2d(num_in, 4 * growth, 1, bias=False)),
            *(nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def build_densenet(depth: int = 100, growth: int = 12) -> nn.Sequential:
    """DenseNet-BC for 32 x 32 images as one row of layers; depth 6n + 4. Huang et al. (2017)."""
    num_in = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, num_in, 3, padding=1, bias=False)]
    for block in range(3):
        for _ in range((depth - 4) // 6):
            layers.append(_DenseLayer(num_in, growth))
            num_in += growth
        if block < 2:
            narrowed = nn.Sequential(nn.BatchNorm2d(num_in), nn.ReLU(), nn.Conv2d(num_in, num_in // 2, 1, bias=False))
            layers += [narrowed, nn.AvgPool2d(2)]
            num_in //= 2
    return nn.Sequential(*layers, *_classifier(num_in))


def _classifier(num_in: int) -> list[nn.Module]:
    head = nn.Sequential(nn.BatchNorm2d(num_in), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(1))
    return [head, nn.Linear(num_in, 10)]


class _VolumeStage(nn.Module):
    """Convolutions of 5 x 5 x 5 with a residual connection around them."""

    def __init__(self, num_in: int, width: int, num_layers: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for layer in range(num_layers):
            convolution = nn.Conv3d(num_in if layer == 0 else width, width, 5, padding=2, bias=False)
            layers += [convolution, nn.BatchNorm3d(width), nn.PReLU(width)]
        self.body = nn.Sequential(*layers)
        self.shortcut = nn.Identity() if num_in == width else nn.Conv3d(num_in, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.body(x)


class VNet(nn.Module):
    """A V-Net for volumes (n, 1, D, H, W) to logits (n, 2, D, H, W). Milletari et al. (2016), half as wide.

    `wrap` is laid around each stage: how it is checkpointed.
    """

    def __init__(self, wrap: Callable[[nn.Module], nn.Module] = lambda stage: stage, *, width: int = 8) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.down_stages = nn.ModuleList(
            wrap(_VolumeStage(a, b, n)) for a, b, n in zip([1, *widths[1:]], widths, (1, 2, 3, 3), strict=True)
        )
        self.downs = nn.ModuleList(nn.Conv3d(a, b, 2, 2) for a, b in pairwise(widths))
        self.ups = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in pairwise(widths))
        self.up_stages = nn.ModuleList(
            wrap(_VolumeStage(2 * a, a, n)) for a, n in zip(widths[:-1], (1, 2, 3), strict=True)
        )
        self.last = nn.Conv3d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for stage, down in zip(self.down_stages, self.downs, strict=False):
            x = stage(x)
            skipped.append(x)
            x = down(x)
        x = self.down_stages[-1](x)
        for up, stage, skip in zip(reversed(self.ups), reversed(self.up_stages), reversed(skipped), strict=True):
            x = stage(torch.cat([up(x), skip], 1))
        return self.last(x)


class CheckpointedByHand(nn.Module):
    """A module in torch.utils.checkpoint."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.module, x, use_reentrant=False)


def build_nin(num_classes: int = 10) -> nn.Sequential:
    """Network in network for 32 x 32 images: three times a convolution and two of 1 x 1. Lin et al. (2014)."""
    layers: list[nn.Module] = []
    num_in = 3
    for widths, size in (((192, 160, 96), 5), ((192, 192, 192), 5), ((192, 192, num_classes), 3)):
        for width, kernel in zip(widths, (size, 1, 1), strict=True):
            layers += [nn.Conv2d(num_in, width, kernel, padding=kernel // 2), nn.ReLU(inplace=True)]
            num_in = width
        if size == 5:
            pool = nn.AvgPool2d if num_in == 192 else nn.MaxPool2d
            layers += [pool(3, 2, 1), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.AvgPool2d(8, 1), nn.Flatten(1))
