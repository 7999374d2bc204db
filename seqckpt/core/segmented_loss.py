"""Decoder and criterion, computed and backpropagated by segments of time, equal to both on the whole sequence.

With a vocabulary of 33,278 words the decoder's output is nearly all of a language model's memory; with seven phases
it is nothing, but the decoder need not be one linear layer. torch has no such thing; per-segment `backward()` by hand
loses the gradient into the recurrent network, and averages means (EXACTNESS: both errors stood in the published
recipe).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_map

from seqckpt.core.criteria import as_modules, split_criterion
from seqckpt.core.cuts import check_length, fixed_spans
from seqckpt.core.replay import Loop, is_replaying, replay_loop

__all__ = ["SegmentedLoss"]


class SegmentedLoss(nn.Module):
    """`criterion(decoder(hidden), targets)` for the whole sequence, with one segment's logits in memory at a time.

    Args:
        decoder: per-frame module, hidden (B, t, H) to logits (B, t, C), or to a dict of such tensors.
        criterion: cross entropy (class weights, ignore_index, label smoothing, soft targets), BCE-with-logits, MSE, any
            element-wise loss of torch's, or one of your own with an attribute `reduction` that takes "none"; a list of
            criteria, which are summed; or a dict with one for each of the decoder's outputs, summed too. Reduction
            "mean" or "sum". A criterion with an attribute `num_previous = n` gets up to n earlier frames' logits and
            targets in front of its segment's and must return elements for the new frames (pairs) only; see
            TemporalSmoothing.
        segment_length: frames per segment.
        collect: called with every segment's detached logits, in the order of time, once per forward (not in replays).
        batch_first: whether time is dimension 1 of hidden and targets, or 0.

    `forward(hidden, targets, mask=None)`: hidden (B, T, H), (T, H) or a PackedSequence; targets (B, T) class numbers,
    or (B, T, C) floats, or a dict of those; mask (B, T) bool, False where a frame does not count (padding). Returns a
    scalar. Classes are the last dimension of logits and soft targets. Half-precision logits are cast to float32
    first. Where every frame is ignored the loss is 0, with zero gradients, where torch's mean would be nan.

    Memory: one segment's logits and their gradient. Time: decoder and criterion run forward twice but for the last
    segment.
    Raises TypeError for a criterion without an element-wise form, ValueError where hidden and targets differ in length.

    >>> head = SegmentedLoss(nn.Linear(16, 7), nn.CrossEntropyLoss(ignore_index=-100), segment_length=50)
    >>> hidden, targets = torch.randn(1, 500, 16), torch.randint(7, (1, 500))
    >>> plain = nn.functional.cross_entropy(head.decoder(hidden).flatten(0, 1), targets.flatten())
    >>> torch.allclose(head(hidden, targets), plain)
    True
    """

    def __init__(
        self,
        decoder: nn.Module,
        criterion: Any,
        segment_length: int,
        *,
        collect: Callable[[Any], None] | None = None,
        batch_first: bool = True,
        check_replay: bool = False,
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self.criterion = as_modules(criterion)
        self.segment_length = segment_length
        self.collect = collect
        self.batch_first = batch_first
        self.check_replay = check_replay
        split_criterion(self.criterion)  # refuse early what cannot be split

    @property
    def segment_length(self) -> int:
        return self._segment_length

    @segment_length.setter
    def segment_length(self, value: int) -> None:
        self._segment_length = check_length(value, "segment_length")

    def extra_repr(self) -> str:
        return f"segment_length={self.segment_length}"

    def forward(self, hidden: Tensor | PackedSequence, targets: Any, mask: Tensor | None = None) -> Tensor:
        parts = split_criterion(self.criterion)
        num_previous = max((split.num_previous for _, split in parts), default=0)
        if isinstance(hidden, PackedSequence):
            if num_previous:
                raise ValueError(
                    "neighbouring frames are not adjacent in a PackedSequence: hand in padded hidden, a mask"
                )
            hidden, time_dim = hidden.data, 0
            targets = tree_map(_data, targets, is_leaf=_is_packed)
        else:
            time_dim = int(self.batch_first and hidden.dim() > 2)
        num_steps = hidden.shape[time_dim]
        _check_steps(num_steps, targets, mask, time_dim)

        def run(k: int, x: Any, state: Any, _: Any) -> tuple[Any, Any]:
            hidden, targets, mask = x
            sums, previous = state
            logits = self.decoder(hidden)
            if self.collect is not None and not is_replaying():
                self.collect(tree_map(torch.Tensor.detach, logits))
            now = (logits, targets) if mask is None else (logits, targets, mask)
            extended = now if previous is None else _extend(previous, now, time_dim)
            num_frames = hidden.shape[:2].numel() if hidden.dim() > 2 else len(hidden)
            new = []
            for name, split in parts:
                frames = now
                if split.num_previous:
                    skipped = 0 if previous is None else _length(previous, time_dim) - split.num_previous
                    frames = _batch_first(_from(extended, max(skipped, 0), time_dim), time_dim, hidden.dim())
                seen, wanted = frames[:2] if name is None else (frames[0][name], frames[1][name])
                new.append(split.parts(seen, wanted, split.mask_of(*frames[2:] or (None,)), num_frames))
            if sums is not None:
                new = [(a + total, b + share) for (a, b), (total, share) in zip(sums, new, strict=True)]
            if num_previous:
                previous = _from(extended, max(_length(extended, time_dim) - num_previous, 0), time_dim)
            return (), (new, previous)

        loop = Loop(
            run=run,
            name="segment",
            spans=fixed_spans(0, num_steps, self.segment_length),
            dim=time_dim,
            modules=[self],
            check=self.check_replay,
        )
        _, (sums, _) = replay_loop(loop, (hidden, targets, mask), (None, None))
        return torch.stack([split.mean(*sums[i]) for i, (_, split) in enumerate(parts)]).sum()


def _length(frames: Any, dim: int) -> int:
    return tree_flatten(frames)[0][0].shape[dim]


def _extend(before: Any, now: Any, dim: int) -> Any:
    return tree_map(lambda b, n: torch.cat([b, n], dim), before, now)


def _from(frames: Any, start: int, dim: int) -> Any:
    return tree_map(lambda t: t.narrow(dim, start, t.shape[dim] - start), frames)


def _batch_first(frames: Any, time_dim: int, hidden_dim: int) -> Any:
    """Frames as (B, T, ...), for criteria that look at neighbours in time."""
    if time_dim == 1:
        return frames
    return tree_map(lambda t: t.unsqueeze(0) if hidden_dim < 3 else t.transpose(0, 1), frames)


def _is_packed(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def _data(value: Any) -> Any:
    return value.data if isinstance(value, PackedSequence) else value


def _check_steps(num_steps: int, targets: Any, mask: Tensor | None, dim: int) -> None:
    if num_steps == 0:
        raise ValueError("hidden has no time steps: expected at least one frame")

    def check(tensor: Any) -> None:
        if isinstance(tensor, Tensor) and (tensor.dim() <= dim or tensor.shape[dim] != num_steps):
            raise ValueError(
                f"targets or mask of shape {tuple(tensor.shape)} for a hidden of {num_steps} steps: expected "
                f"{num_steps} in dimension {dim}"
            )

    tree_map(check, (targets, mask))
