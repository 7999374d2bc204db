"""A small frame encoder that trains on a CPU in minutes: no batch norm, so that chunks of any size agree."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from seqckpt.errors import UsageError

__all__ = ["SmallEncoder"]

_GRID = 4


class SmallEncoder(nn.Sequential):
    """Frames (n, 3, H, W), about 64 x 64 -> features (n, num_features), float.

    Four strided convolutions with group norm, and one linear layer that sees a 4 x 4 grid of them: where something
    stands matters. About 4 million multiplications a frame at 64 x 64. Any size from 8 x 8 up works. Stages: `stem`,
    `stage1`, `stage2`, `stage3`, `grid`, `flatten`, `project`.
    """

    num_features: int

    def __init__(self, num_features: int = 64, *, width: int = 16) -> None:
        if num_features < 1 or width < 1:
            raise UsageError(
                f"SmallEncoder got num_features={num_features} and width={width}: both must be at least 1 "
                "(64 and 16 are the defaults)"
            )
        widths = (width, 2 * width, 4 * width, 4 * width)
        super().__init__(
            OrderedDict(
                stem=_stage(3, widths[0], kernel_size=5),
                stage1=_stage(widths[0], widths[1]),
                stage2=_stage(widths[1], widths[2]),
                stage3=_stage(widths[2], widths[3]),
                grid=nn.AdaptiveAvgPool2d(_GRID),
                flatten=nn.Flatten(1),
                project=nn.Sequential(nn.Linear(widths[3] * _GRID**2, num_features), nn.ReLU()),
            )
        )
        self.num_features = num_features


def _stage(num_in: int, num_out: int, *, kernel_size: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(num_in, num_out, kernel_size, stride=2, padding=kernel_size // 2, bias=False),
        nn.GroupNorm(math.gcd(num_out, max(1, num_out // 8)), num_out),
        nn.ReLU(inplace=True),
    )
