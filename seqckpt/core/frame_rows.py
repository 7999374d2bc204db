"""Frames of several sources in one row, read from when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from seqckpt.errors import ReplayError

__all__ = ["FrameRows", "FrameSource"]


@runtime_checkable
class FrameSource(Protocol):
    """Frames that need not be in memory: `len(source)`, and `source[a:b]` as a uint8 tensor (b - a, C, H, W).

    Read in forward, and again in the replay: both must give the same frames. A tensor (t, C, H, W) is a FrameSource.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice) -> Tensor: ...


class FrameRows:
    """The frames of several sources in a row, read when asked for."""

    def __init__(self, sources: Sequence[FrameSource]) -> None:
        self.sources = sources
        self.versions = [_version(source) for source in sources]
        self.ends = torch.tensor([len(source) for source in sources]).cumsum(0).tolist()

    def __len__(self) -> int:
        return self.ends[-1]

    def read(self, start: int, stop: int) -> Tensor:
        parts, first = [], 0
        for source, version, end in zip(self.sources, self.versions, self.ends, strict=True):
            a, b = max(start, first), min(stop, end)
            if a < b:
                if _version(source) != version:
                    raise ReplayError(
                        "frames were changed in place between forward and backward, and the replay needs them"
                    )
                parts.append(source[a - first : b - first])
            first = end
        return torch.cat(parts)  # a copy: a first layer in place must not write into the caller's frames


def _version(source: FrameSource) -> int | None:
    return source._version if isinstance(source, Tensor) and not source.is_inference() else None
