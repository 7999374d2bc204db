"""Frames in every layout in memory, and plain loops over their chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from .draws import Draw

__all__ = ["FORMATS", "draw_frames", "flat", "joined", "plain_chunks", "read_clips"]

FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}
LAYOUTS = (
    *("contiguous", "channels last", "rows of channels", "expanded over batch", "expanded over time", "sliced in time"),
    *("sliced in space", "sliced in channels", "transposed", "padded rows"),
)


def draw_frames(draw: Draw, sizes: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """A leaf, and the view of it that is encoded, (B, T, C, ...) of `sizes`."""
    batch, time, channels, *space = sizes
    kind = draw.one("layout", LAYOUTS, (4, 3, 1, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7))
    if kind == "channels last" and len(space) in FORMATS:
        leaf = torch.randn(batch * time, channels, *space, dtype=dtype).to(memory_format=FORMATS[len(space)])
        return leaf, lambda x: x.unflatten(0, (batch, time))
    shapes: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
        "rows of channels": ((batch, time, *space, channels), lambda x: x.movedim(-1, 2)),
        "expanded over batch": ((1, time, channels, *space), lambda x: x.expand(batch, *x.shape[1:])),
        "expanded over time": ((batch, 1, channels, *space), lambda x: x.expand(-1, time, *x.shape[2:])),
        "sliced in time": ((batch, 2 * time, channels, *space), lambda x: x[:, ::2]),
        "sliced in space": ((*sizes[:-1], sizes[-1] + 2), lambda x: x[..., 1:-1]),
        "sliced in channels": ((batch, time, channels + 1, *space), lambda x: x[:, :, 1:]),
        "transposed": ((time, batch, channels, *space), lambda x: x.transpose(0, 1)),
        "padded rows": ((batch, time, channels + 2, *space), lambda x: x.narrow(2, 1, channels)),
    }
    shape, view = shapes.get(kind, (sizes, lambda x: x))
    return torch.randn(*shape, dtype=dtype), view


def _spans(num_rows: int, chunk_size: int) -> Iterator[tuple[int, int]]:
    num_chunks = -(-num_rows // chunk_size)
    for k in range(num_chunks):
        yield num_rows * k // num_chunks, num_rows * (k + 1) // num_chunks


def joined(parts: Sequence[Any]) -> Any:
    return tree_map(lambda *leaves: torch.cat(leaves) if isinstance(leaves[0], Tensor) else leaves[0], *parts)


def plain_chunks(encoder: Any, read: Callable[[int, int], Tensor], num_rows: int, chunk_size: int) -> Any:
    return joined([encoder(read(start, stop)) for start, stop in _spans(num_rows, chunk_size)])


def read_clips(clips: Sequence[Tensor], start: int, stop: int) -> Tensor:
    """Rows start to stop of clips in a row; of one clip a view."""
    parts, offset = [], 0
    for clip in clips:
        low, high = max(start - offset, 0), min(stop - offset, len(clip))
        if low < high:
            parts.append(clip[low:high])
        offset += len(clip)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def flat(leaf: Any) -> Any:
    return leaf.flatten(0, 1) if isinstance(leaf, Tensor) else leaf
