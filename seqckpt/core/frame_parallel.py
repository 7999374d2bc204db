"""One long clip on several processes: each encodes its share of the frames, all of them get all features.

    rank 0   frames [0 125)    -> encoder --+               +-> features [0 500) -> recurrent network, loss
    rank 1   frames [125 250)  -> encoder --+-- all-gather -+-> the same         -> the same
    rank 2   frames [250 375)  -> encoder --+               +-> the same         -> the same
    rank 3   frames [375 500)  -> encoder --+               +-> the same         -> the same

In backward the features' gradients of all ranks are added up, and each rank takes the rows of its own frames back
through its encoder. Where every rank computes the same loss, as above, that sum is F times the gradient; DDP's mean
over the ranks then makes both exact, the encoder's (F times a share on each of F ranks) and that of what follows (once
on each of F ranks). DDP around the whole model is thus all that has to be added.

torch's own gathers with a gradient are deprecated (torch.distributed.nn) or have names that begin with an underscore
(torch.distributed._functional_collectives) and take equally long parts only; hence the small function at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from seqckpt.core.chunked_encoder import FrameSource, check_lengths, pad_clips
from seqckpt.core.random_states import RandomStates
from seqckpt.core.surroundings import accelerators_of
from seqckpt.errors import UsageError
from seqckpt.transparent import hide_in_state_dict

__all__ = ["FrameParallel", "frame_spans"]


def frame_spans(lengths: Sequence[int], num_ranks: int, rank: int) -> list[tuple[int, int]]:
    """Say which frames of each clip one of several ranks encodes: as many as any other rank, give or take one.

    The frames of all clips count in a row. A rank that would have none, where there are fewer frames than ranks, has
    one nevertheless: it has to take part, and its features are not used.

    >>> [frame_spans([5, 4], 3, rank) for rank in range(3)]
    [[(0, 3), (0, 0)], [(3, 5), (0, 1)], [(5, 5), (1, 4)]]
    """
    total = sum(lengths)
    start, stop = total * rank // num_ranks, total * (rank + 1) // num_ranks
    stop = max(stop, start + 1)
    firsts = accumulate([0, *lengths[:-1]])
    return [
        (min(max(start - first, 0), length), min(max(stop - first, 0), length))
        for first, length in zip(firsts, lengths, strict=True)
    ]


class FrameParallel(nn.Module):
    """An encoder of frames, shared out over the ranks of a process group; every rank gets the features of all frames.

    Args:
        encoder: a module from a list of clips, tensors (t, C, H, W) or FrameSources, to a list of features (t, ...),
            nested or not: a ChunkedEncoder.
        group: the ranks that share the frames; None: all of them.

    Called as ChunkedEncoder is, with **the same clips on every rank of the group**; what it returns is the same too.
    Of frames that are not in memory each rank reads only its own. `state_dict()` has the encoder's own keys.

    Every rank of the group must run the whole model and the same backward, with the model in DDP: see the drawing above
    for why gradients are exact then. Frames that require grad get the gradient of this rank's own frames only, and F
    times it.

    Memory: 1/F of the frames and of the encoder's activations, all features. Communication: features once forward, once
    backward. Random numbers that the encoder draws are others on each rank; afterwards all ranks' generators are as
    equal as they were before. Batch norm in training mode has the statistics of a rank's chunks.

    Raises UsageError, on all ranks, where the first call finds that their clips are of different lengths.

    >>> cnn = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> FrameParallel(cnn)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
      ...
    seqckpt.errors.UsageError: FrameParallel needs processes that know each other: ...
    """

    def __init__(self, encoder: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        if not (dist.is_available() and dist.is_initialized()):
            raise UsageError(
                "FrameParallel needs processes that know each other: start them with torchrun, and call "
                "torch.distributed.init_process_group() first"
            )
        self.encoder = encoder
        self.group = group
        self.num_ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self._is_checked = False
        hide_in_state_dict(self, "encoder")

    def extra_repr(self) -> str:
        return f"rank {self.rank} of {self.num_ranks}"

    def forward(self, frames: Tensor | Sequence[FrameSource], lengths: Sequence[int] | Tensor | None = None) -> Any:
        if not isinstance(frames, Tensor):
            return self._encode(list(frames))
        num_steps = frames.shape[1]
        sizes = [num_steps] * len(frames) if lengths is None else check_lengths(lengths, frames)
        features = self._encode([clip[:size] for clip, size in zip(frames, sizes, strict=True)])
        return tree_map(lambda *rows: pad_clips(rows, num_steps), *features)

    def _encode(self, clips: Sequence[FrameSource]) -> list[Any]:
        lengths = [len(clip) for clip in clips]
        if not clips or 0 in lengths:
            raise ValueError(f"clips of {lengths} frames: expected one or more, none of them empty")
        self._check(lengths)
        total = sum(lengths)
        counts = [total * (k + 1) // self.num_ranks - total * k // self.num_ranks for k in range(self.num_ranks)]
        spans = frame_spans(lengths, self.num_ranks, self.rank)
        own = [_part(clip, *span) for clip, span in zip(clips, spans, strict=True) if span[0] < span[1]]
        with _own_random_numbers(self.encoder, self.rank):
            per_clip = [tree_flatten(features) for features in self.encoder(own)]
        spec = per_clip[0][1]
        columns = zip(*(leaves for leaves, _ in per_clip), strict=True)
        whole = [self._gather(column, counts, lengths) for column in columns]
        return [tree_unflatten(list(leaves), spec) for leaves in zip(*whole, strict=True)]

    def _gather(self, column: Sequence[Any], counts: Sequence[int], lengths: list[int]) -> Sequence[Any]:
        """For each clip what all ranks have of one of the encoder's results."""
        if not isinstance(column[0], Tensor):
            return [column[0]] * len(lengths)
        return _Gather.apply(torch.cat(list(column)), counts, self.group).split(lengths)

    def _check(self, lengths: list[int]) -> None:
        """Ranks with clips of different lengths would wait for each other for ever, or mix up features."""
        if self._is_checked:
            return
        of_all: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(of_all, lengths, group=self.group)
        if any(other != lengths for other in of_all):
            raise UsageError(
                f"the ranks that share frames were given clips of {of_all} frames: expected the same clips on each of "
                "them. Where each rank has clips of its own, use DDP alone"
            )
        self._is_checked = True


@dataclass(frozen=True)
class _Part:
    """Frames `start` to `stop` (exclusive) of a source, read when sliced."""

    source: FrameSource
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: slice) -> Tensor:
        start, stop, _ = index.indices(len(self))
        return self.source[self.start + start : self.start + stop]


def _part(clip: FrameSource, start: int, stop: int) -> FrameSource:
    return clip[start:stop] if isinstance(clip, Tensor) else _Part(clip, start, stop)


@contextmanager
def _own_random_numbers(encoder: nn.Module, rank: int) -> Iterator[None]:
    """Let each rank draw numbers of its own, and leave all generators as equal as they were.

    Ranks have different numbers of chunks, so they draw different numbers of times; layers that follow must draw the
    same on every rank. Where nothing is drawn, the random state is left exactly as it was.
    """
    tensors = chain(encoder.parameters(), encoder.buffers())
    states = RandomStates(accelerators_of(tensors), [encoder])
    before = states.read()
    generator = torch.Generator()
    generator.set_state(before[0])
    states.seed(int(torch.randint(2**62, (), generator=generator)) + rank)
    seeded = states.read()
    try:
        yield
    finally:
        used = states.read()
        states.write(before)
        if states.differ(seeded, used):
            states.advance(seeded, used)  # or the next call would begin with the same seed


class _Gather(torch.autograd.Function):
    """The rows of all ranks, one after the other, as many of each as `counts` says; backward adds up over the ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int], group: dist.ProcessGroup | None) -> Tensor:
        ctx.counts, ctx.group, ctx.num_rows = counts, group, len(rows)
        most = max(counts)
        padded = rows.new_zeros(most, *rows.shape[1:])
        padded[: len(rows)] = rows[:most]
        gathered = rows.new_empty(len(counts) * most, *rows.shape[1:])
        dist.all_gather_single(gathered, padded, group=group)
        return torch.cat([part[:count] for part, count in zip(gathered.split(most), counts, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        most, dtype = max(ctx.counts), gradient.dtype
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype  # a sum in half precision rounds
        padded = torch.zeros(len(ctx.counts) * most, *gradient.shape[1:], dtype=wide, device=gradient.device)
        for part, rows in zip(padded.split(most), gradient.split(ctx.counts), strict=True):
            part[: len(rows)] = rows
        own = padded.new_empty(most, *gradient.shape[1:])
        dist.reduce_scatter_single(own, padded, group=ctx.group)
        result = gradient.new_zeros(ctx.num_rows, *gradient.shape[1:])
        count = ctx.counts[dist.get_rank(ctx.group)]
        result[:count] = own[:count]
        return result, None, None
