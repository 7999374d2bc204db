"""What lies behind the encoder costs: the recurrent network and the loss, run on features that are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from seqckpt.memory.allocated import AllocationRecord
from seqckpt.memory.clock import Clock, repeat_for_a_moment
from seqckpt.memory.costs import TailCosts
from seqckpt.memory.sample import Sample

__all__ = ["measure_tail"]

_TAIL_STEPS, _FAR_STEPS = 96, 1000  # time steps of the sequences that are measured, and of one long one


def measure_tail(model: Any, sample: Sample, device: torch.device) -> TailCosts:
    """Run the recurrent network and the loss on given features, in few and in many segments, and take the differences.

    With T steps, segments of s and loss segments of l, what is there at the end of forward is taken for
    fixed + step T + segment s + state T / s + loss l: five numbers, the state's known from the state itself. Backward's
    own needs come on top: gradients of weights at once, of features and hidden states with every step; the greater of
    both counts, so that it takes a long sequence to see it grow with T.
    """
    longest = max(sample.lengths)
    steps = max(2, min(longest, _TAIL_STEPS))
    far = min(longest, _FAR_STEPS) if longest >= 2 * steps else max(1, steps // 2)
    short, piece = max(1, steps // 8), max(1, far // 8)
    is_segmented = hasattr(model.rnn, "segment_length")
    run = _TailRun(model, sample, device)
    whole = run(steps, steps, steps)
    both = run(steps, short if is_segmented else steps, short)
    far_whole = run(far, far, far, is_timed=False)
    far_cut = run(far, piece, far, is_timed=False) if is_segmented else far_whole
    far_both = run(far, piece if is_segmented else far, piece, is_timed=False)
    state, num_segments, longer = run.state_bytes, -(-steps // short), max(1, far - piece)
    more_states = state * (-(-far // piece) - 1)
    segment = max(0.0, (far_whole.alive - far_cut.alive + more_states) / longer) if is_segmented else 0.0
    loss = max(0.0, (far_cut.alive - far_both.alive) / longer)

    def per_step(of_both: float, of_far: float) -> float:
        return (of_both - of_far) / (steps - far) if steps != far else of_both / steps

    def of_segments(length: int, segment_length: int, loss_length: int) -> float:
        cut = segment * segment_length + state * -(-length // segment_length) if is_segmented else 0.0
        return cut + loss * loss_length

    step = per_step(both.alive - of_segments(steps, short, short), far_both.alive - of_segments(far, piece, piece))
    fixed = far_whole.alive - step * far - of_segments(far, far, far)
    work = max(0.0, per_step(both.work, far_both.work))
    work_of_whole = max(whole.work - work * steps, far_whole.work - work * far)
    work_of_cut = max(both.work - work * steps, far_cut.work - work * far, far_both.work - work * far)
    end_step = per_step(both.end, far_both.end)
    forward, backward = whole.forward / steps, whole.backward / steps
    replays = forward * (steps - short) if is_segmented else 0.0
    extra = both.forward + both.backward - whole.forward - whole.backward - replays
    return TailCosts(
        fixed_bytes=fixed + work_of_whole,
        replay_bytes=max(0.0, work_of_cut - work_of_whole),
        step_bytes=step + work,
        segment_bytes=segment,
        state_bytes=float(state),
        loss_bytes=loss,
        end_bytes=both.end - end_step * steps,
        end_step_bytes=end_step,
        forward_seconds=forward,
        backward_seconds=backward,
        segment_seconds=max(0.0, extra / (2 * num_segments)),
        is_segmented=is_segmented,
    )


class _TailResult:
    alive = work = end = 0  # bytes: at the end of forward; at the peak, beyond those; at the end of backward
    forward = backward = 0.0  # seconds


class _TailRun:
    """One run behind the encoder, of so many steps, in segments of such lengths."""

    def __init__(self, model: Any, sample: Sample, device: torch.device) -> None:
        self.model, self.sample, self.device = model, sample, device
        with torch.no_grad():
            self.features = model.encoder(sample.cut(1).frames)  # one frame of each clip
        self.state_bytes = 0

    def __call__(self, steps: int, segment_length: int, loss_length: int, *, is_timed: bool = True) -> _TailResult:
        sample = self.sample.stretched(steps)
        features = self.given(sample.lengths)
        result = _TailResult()
        with _replaced(self.model, _GivenFeatures(features), segment_length, loss_length):
            if is_timed:
                seconds = repeat_for_a_moment(lambda: self.timed(sample))
                result.forward, result.backward = (min(values) for values in zip(*seconds, strict=True))
            self.clear(features)
            with AllocationRecord(self.device) as record:
                loss, state = self.model(sample.frames, sample.targets)
                self.state_bytes = sum(
                    t.numel() * t.element_size() for t in tree_flatten(state)[0] if isinstance(t, Tensor)
                )
                del state
                record.mark("backward")
                loss.backward()
                del loss
            result.alive, result.end = (interval.end_bytes for interval in record.intervals)
            result.work = max(0, record.peak_bytes - result.alive)
            self.clear(features)
        return result

    def given(self, lengths: Sequence[int]) -> Any:
        """Features of clips of such lengths, which ask for gradients where the encoder's would."""
        wanted = any(p.requires_grad for p in self.model.encoder.parameters())

        def make(one: Tensor, shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, dtype=one.dtype, device=one.device).requires_grad_(wanted)

        if isinstance(self.sample.frames, Tensor):
            return tree_map(lambda one: make(one, (one.shape[0], lengths[0], *one.shape[2:])), self.features)
        clips = zip(self.features, lengths, strict=True)
        return [
            tree_map(lambda one, length=length: make(one, (length, *one.shape[1:])), features)
            for features, length in clips
        ]

    def timed(self, sample: Sample) -> list[float]:
        clock = Clock(self.device)
        clock.mark()
        loss, _ = self.model(sample.frames, sample.targets)
        clock.mark()
        loss.backward()
        clock.mark()
        return clock.seconds()

    def clear(self, features: Any) -> None:
        for tensor in (*self.model.parameters(), *tree_flatten(features)[0]):
            tensor.grad = None


class _GivenFeatures(nn.Module):
    """In the encoder's place: features that are there already."""

    def __init__(self, features: Any) -> None:
        super().__init__()
        self.features = features

    def forward(self, frames: Any) -> Any:
        return self.features


@contextmanager
def _replaced(model: Any, encoder: nn.Module, segment_length: int, loss_length: int) -> Iterator[None]:
    own, model.encoder = model.encoder, encoder
    try:
        if hasattr(model.rnn, "segment_length"):
            model.rnn.segment_length = segment_length
        if hasattr(model.head, "segment_length"):
            model.head.segment_length = loss_length
        yield
    finally:
        model.encoder = own
