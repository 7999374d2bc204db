"""The guard that is always on: a checksum of every replayed piece's results is held against the first run's.

A replay that computes something else than its first run gives gradients of another function, with a right loss. What a
replay sets back (random states, buffers, modes) covers what is known; a generator that nobody can see, a cache, an
attribute that is counted up, data that read differently now, are noticed by what they do. A checksum is a weighted sum
of 128 values of a result, spread over all its rows, beside the largest of them; all are compared once, at the end of
backward, so that an accelerator is waited for once. Memory: two numbers for each piece and result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from seqckpt.core.replay_check import relative_tolerance
from seqckpt.errors import ReplayError

__all__ = ["ReplayChecksums"]

_NUM_VALUES = 128
_GOLDEN = 0.6180339887498949


class ReplayChecksums:
    """Checksums of the results of the pieces of one first run, and of their replays.

    Args:
        in_half_precision: whether autocast is on, so that results in float32 may be as exact as half precision only.
    """

    def __init__(self, in_half_precision: bool) -> None:
        self.in_half_precision = in_half_precision
        self.first: dict[int, tuple[list[Any], Tensor | None]] = {}
        self.replayed: list[tuple[int, list[Any], Tensor, Tensor]] = []

    def remember(self, k: int, flat_results: Sequence[Any]) -> None:
        self.first[k] = _checksums(flat_results)

    def compare_later(self, k: int, where: str, flat_results: Sequence[Any]) -> None:
        """Note the replay of piece k; raise ReplayError at once if its results have other shapes."""
        if k not in self.first:  # a second backward of a piece whose graph was kept for the first
            return
        (kinds, first), (kinds_now, now) = self.first[k], _checksums(flat_results)
        if kinds != kinds_now:
            raise ReplayError(f"the replay of {where} returned {kinds_now}, its first run {kinds}: {_CAUSES}")
        if first is not None and now is not None:
            self.replayed.append((k, kinds, first, now))

    def compare(self, describe: Callable[[int], str]) -> None:
        """Raise ReplayError, naming the first piece that was replayed otherwise."""
        replayed, self.replayed = self.replayed, []
        if not replayed:
            return
        first = torch.cat([first for _, _, first, _ in replayed])
        now = torch.cat([now for _, _, _, now in replayed])
        pieces = [(k, dtype) for k, kinds, _, _ in replayed for _, dtype in kinds]
        half = torch.bfloat16 if self.in_half_precision else None
        tolerances = first.new_tensor([relative_tolerance(half or dtype) for _, dtype in pieces])
        is_same = (first == now) | (first.isnan() & now.isnan())
        difference = torch.where(is_same, 0.0, (first - now).abs())
        allowed = tolerances * first[:, 1].nan_to_num(posinf=0.0)
        wrong = ~(difference <= allowed[:, None]).all(1)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            relative = float((difference[row] / first[row, 1]).max())
            raise ReplayError(
                f"the replay of {describe(pieces[row][0])} does not repeat its first run: a weighted mean of its "
                f"results differs by {relative:.2g} of their largest, so its gradients would be those of another "
                f"function. {_CAUSES}"
            )


_CAUSES = (
    "It draws from a generator of random numbers that is not to be found at the module or function (make it an "
    "attribute, or draw from torch's), or uses an attribute that it counts up, a cache, or data that read differently "
    "now. check_replay() compares all values at once and looks for the cause; check_replay(False) compares none"
)


def _checksums(flat_results: Sequence[Any]) -> tuple[list[Any], Tensor | None]:
    """Shapes and dtypes of the results that are tensors of numbers, and for each a weighted sum and a largest value."""
    kinds, sums = [], []
    with torch.no_grad():
        for t in flat_results:
            if not isinstance(t, Tensor) or not (t.is_floating_point() or t.is_complex()):
                continue
            if t.layout != torch.strided or t.device.type == "meta" or not t.numel():
                continue
            kinds.append((tuple(t.shape), t.dtype))
            t = torch.view_as_real(t.detach()) if t.is_complex() else t.detach()
            places, weights = _places(t.shape or torch.Size([1]), t.device)
            values = (t if t.dim() else t.reshape(1))[places].to(weights.dtype)
            sums.append(torch.stack([torch.dot(values, weights), values.abs().max()]))
        return kinds, torch.stack([s.to(sums[0].device) for s in sums]) if sums else None


@lru_cache(maxsize=256)
def _places(shape: torch.Size, device: torch.device) -> tuple[tuple[Tensor, ...], Tensor]:
    """Indices of places spread evenly over a tensor, each moved a little, so as to miss no column; and weights whose
    magnitudes add up to 1."""
    with torch.inference_mode(False):
        number = min(_NUM_VALUES, shape.numel())
        step = shape.numel() / number
        places = torch.tensor([int((i + i * _GOLDEN % 1) * step) for i in range(number)])
        weights = torch.tensor([(i * i * _GOLDEN % 1 + 0.5) * (-1) ** (i * i // 3) for i in range(number)])
        weights = weights.to(device, torch.float32 if device.type == "mps" else torch.float64)
        return tuple(index.to(device) for index in torch.unravel_index(places, shape)), weights / weights.abs().sum()
