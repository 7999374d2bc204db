"""Predicted peak bytes and seconds of a training step under a schedule: arithmetic on measured costs, and nothing else.

Words: an encoder is a row of stages, stage 0 being what reads a chunk and makes floats of it. A schedule forgets the
stages before a *cut* and keeps the graphs of those behind it; frozen stages in front may be stored. N chunks of n
rows, the last k of which are kept whole. The peak of a step is the largest of its moments:

    encoder forward   the graphs kept so far, and one chunk at work
    recurrent part    all kept graphs, and the recurrent network and the loss at work, forward and backward
    encoder backward  from the last chunk: kept graphs get fewer, parameters' gradients are there, one chunk is replayed
    optimiser         parameters, gradients, state; no activations

on top of what is there all the time: parameters, optimiser state, frames, features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from seqckpt.core.schedule import Schedule
from seqckpt.memory.costs import Costs, Prediction, StageCosts

__all__ = ["Cut", "Encoder", "Tail", "combine", "count_pieces", "cut_at", "predict"]


def _interpolate(points: Sequence[tuple[int, float]], at: float) -> float:
    """Straight between points, and as at the nearest one beyond them; 1 without any."""
    if not points:
        return 1.0
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return points[0][1] if at < points[0][0] else points[-1][1]


def count_pieces(length: int, piece: int) -> int:
    """How many pieces of at most `piece` rows there are in `length`."""
    return -(-length // piece)


def predict(costs: Costs, schedule: Schedule) -> Prediction:
    """Predict a step under `schedule`."""
    num_chunks = count_pieces(costs.num_rows, min(schedule.chunk_size, costs.num_rows))
    tail = Tail(costs, _levels(schedule), schedule.loss_segment_length or _levels(schedule)[-1])
    keep = schedule.keep
    cut = cut_at(costs, num_chunks, depth=keep.depth, chunks=keep.chunks, frozen=keep.frozen)
    return combine(costs, Encoder(costs, num_chunks), tail, cut)


@dataclass(frozen=True)
class Cut:
    """What is kept: `stages` in front are forgotten (or stored, where frozen), one fewer in the last `deeper` chunks
    of those that are not among the last `kept`, which are kept whole."""

    stages: int
    deeper: int = 0
    kept: int = 1
    stored: bool = True


def cut_at(costs: Costs, num_chunks: int, *, depth: float, chunks: int, frozen: bool) -> Cut:
    """The cut that Keep(depth, chunks, frozen) makes in so many chunks."""
    whole, rest = divmod(depth, 1)
    kept = min(chunks, num_chunks)
    if kept == num_chunks:  # no other chunks that `rest` could be a share of: kept ones are cut at the deeper place
        return Cut(len(costs.stages) - int(whole) - (rest > 0), kept=kept, stored=frozen)
    return Cut(len(costs.stages) - int(whole), deeper=round(rest * (num_chunks - kept)), kept=kept, stored=frozen)


def _levels(schedule: Schedule) -> tuple[int, ...]:
    length = schedule.segment_length
    return (length,) if isinstance(length, int) else tuple(length)


class Encoder:
    """The encoder's costs in chunks of one size: sums over its stages, made once for all cuts."""

    def __init__(self, costs: Costs, num_chunks: int) -> None:
        stages, self.num_chunks = costs.stages, num_chunks
        rows = count_pieces(costs.num_rows, num_chunks)
        self.seconds_rows = costs.num_rows / num_chunks
        self.rows = rows
        self.outputs = [stage.output_bytes(rows) for stage in stages]
        saved = [stage.saved_bytes(rows) for stage in stages]
        self.saved_before = [0.0, *accumulate(saved)]  # by the stages before a cut
        total = self.saved_before[-1]
        self.result = 0.0 if stages[-1].output_is_saved else self.outputs[-1]
        self.whole = total + self.result
        # Behind a cut, the tensor at the cut counts as well, once.
        self.behind = [
            total - self.saved_before[cut] + self.result + (self._boundary(stages, cut) if cut else 0.0)
            for cut in range(len(stages) + 1)
        ]
        self.before = [
            self.saved_before[cut] - (self.outputs[cut - 1] if cut and stages[cut - 1].output_is_saved else 0.0)
            for cut in range(len(stages) + 1)
        ]
        no_grad = [stage.no_grad_peak(rows) for stage in stages]
        forward = [stage.forward_peak(rows) for stage in stages]
        backward = [stage.backward_peak(rows) for stage in stages]
        self.no_grad_peaks, self.forward_peaks, self.backward_peaks = no_grad, forward, backward
        self.later_backward_peaks = [
            peak + stage.copied_gradient_bytes for peak, stage in zip(backward, stages, strict=True)
        ]
        gradients = [stage.gradient_bytes for stage in stages]
        self.gradients = float(sum(gradients))
        so_far = list(accumulate(reversed(gradients)))[::-1]  # when a stage's backward is done
        # In the first backward a new gradient is the sum already: the peaks, measured with sums there, hold it as well.
        once = [grown - stage.largest_gradient_bytes for grown, stage in zip(so_far, stages, strict=True)]
        self.first_backward_peak = max(peak + grown for peak, grown in zip(backward, once, strict=True))
        self.no_grad_seconds = [0.0, *accumulate(stage.no_grad_seconds(self.seconds_rows) for stage in stages)]
        self.forward_seconds = [0.0, *accumulate(stage.forward_seconds(self.seconds_rows) for stage in stages)]
        self.seconds_factor = _interpolate(costs.seconds_factors, self.seconds_rows)
        self.backward_seconds = sum(stage.backward_seconds(self.seconds_rows) for stage in stages)
        least = sum(
            min(stage.no_grad_seconds(self.seconds_rows), stage.forward_seconds(self.seconds_rows)) for stage in stages
        )
        # No cut is faster: forward once, by the faster way, and backward.
        self.least_seconds = num_chunks * (least + self.backward_seconds + costs.chunk_seconds) * self.seconds_factor

    def _boundary(self, stages: Sequence[StageCosts], cut: int) -> float:
        return 0.0 if cut == len(stages) or stages[cut - 1].output_is_saved_later else self.outputs[cut - 1]


class Tail:
    """The recurrent part's costs under one choice of segments."""

    def __init__(self, costs: Costs, levels: Sequence[int], loss_length: int) -> None:
        tail, steps = costs.tail, costs.num_steps
        self.levels, self.loss_length = tuple(levels), loss_length
        lengths = [steps, *(min(length, steps) for length in levels)] if tail.is_segmented else [steps]
        num_states = sum(count_pieces(a, b) for a, b in pairwise(lengths))
        self.peak_bytes = (
            tail.fixed_bytes
            + (tail.replay_bytes if num_states > 1 or loss_length < steps else 0.0)
            + tail.step_bytes * steps
            + tail.segment_bytes * lengths[-1]
            + tail.state_bytes * num_states
            + tail.loss_bytes * min(loss_length, steps)
        )
        self.end_bytes = tail.end_bytes + tail.end_step_bytes * steps
        self.forward_seconds = tail.forward_seconds * steps
        replayed = sum(1 - b / a for a, b in pairwise(lengths))
        num_segments = count_pieces(steps, lengths[-1]) + count_pieces(steps, min(loss_length, steps))
        self.recompute_seconds = self.forward_seconds * replayed
        self.seconds = (
            self.forward_seconds
            + tail.backward_seconds * steps
            + self.recompute_seconds
            + tail.segment_seconds * num_segments
        )


def combine(costs: Costs, encoder: Encoder, tail: Tail, cut: Cut) -> Prediction:
    """Predict a step of encoder and tail."""
    step = _Step(costs, encoder, tail, cut)
    moments = step.moments()
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    return Prediction(
        peak_bytes=round(sum(moments[moment].values())),
        step_seconds=step.seconds() * encoder.seconds_factor + tail.seconds,
        recompute_seconds=step.replay_seconds() * encoder.seconds_factor + tail.recompute_seconds,
        forward_seconds=encoder.num_chunks * encoder.forward_seconds[-1] * encoder.seconds_factor
        + tail.forward_seconds,
        moment=moment,
        parts=moments[moment],
    )


class _Step:
    """One step under one cut: sums over its chunks."""

    def __init__(self, costs: Costs, encoder: Encoder, tail: Tail, cut: Cut) -> None:
        self.costs, self.encoder, self.tail = costs, encoder, tail
        self.first = costs.num_frozen if cut.stored and costs.num_frozen > 1 else 0
        self.kept = cut.kept
        forgotten = encoder.num_chunks - cut.kept
        front = costs.num_frozen if costs.num_frozen > 1 else 0
        stages = max(cut.stages, front)  # frozen stages have no graphs that could be kept
        # The chunks that are not kept whole, in the order of forward: how many, and after how many stages they are cut.
        groups = [(forgotten - cut.deeper, stages), (cut.deeper, max(stages - 1, front))]
        self.groups = [(count, at) for count, at in groups if count]
        self.stored_bytes = encoder.outputs[self.first - 1] if self.first else 0.0

    def is_cut(self, at: int) -> bool:
        return at < len(self.costs.stages)

    def behind(self, at: int) -> float:
        """Bytes of the graph of a chunk's stages from `at` on."""
        return self.encoder.behind[at] if self.is_cut(at) else 0.0

    def graphs(self, num_chunks: int) -> float:
        """Bytes of the kept graphs of so many chunks, the first ones.

        That of the first starts from a copy where it starts from what is stored (see core/handover.py)."""
        _, at = self.groups[0] if self.groups else (0, len(self.costs.stages))
        total = self.stored_bytes if num_chunks and at == self.first and self.is_cut(at) else 0.0
        for count, at in self.groups:
            total += min(count, num_chunks) * self.behind(at)
            num_chunks = max(0, num_chunks - count)
        return total

    def replay_seconds(self) -> float:
        seconds = self.encoder.forward_seconds
        if not self.encoder.gradients:
            return 0.0  # nothing is trained, nothing is replayed
        return sum(count * max(0.0, seconds[at] - seconds[self.first]) for count, at in self.groups if at > self.first)

    def seconds(self) -> float:
        """Forward, backward and replays of all chunks."""
        encoder, costs = self.encoder, self.costs
        first_pass = sum(
            count * (encoder.no_grad_seconds[at] + encoder.forward_seconds[-1] - encoder.forward_seconds[at])
            for count, at in self.groups
        )
        held = self.graphs(encoder.num_chunks) + encoder.whole * self.kept
        return (
            first_pass
            + self.replay_seconds()
            + self.kept * encoder.forward_seconds[-1]
            + encoder.num_chunks * (encoder.backward_seconds + costs.chunk_seconds)
            + held * costs.kept_byte_seconds
        )

    def moments(self) -> dict[str, dict[str, float]]:
        """Bytes by their use, at every moment that may be the peak."""
        costs, encoder, tail, first = self.costs, self.encoder, self.tail, self.first
        forgotten = encoder.num_chunks - self.kept
        whole = encoder.whole - encoder.saved_before[first]
        shared = encoder.before[first] + self.stored_bytes  # stored, and in the peaks of graphs too
        gradients = encoder.gradients + tail.end_bytes
        always: dict[str, float] = {
            "parameters": costs.parameter_bytes,
            "optimiser state": costs.optimiser_bytes,
            "frames": costs.frame_bytes,
            "frozen stages' output": self.stored_bytes * encoder.num_chunks,
        }
        moments: dict[str, dict[str, float]] = {}

        features = encoder.outputs[-1] * encoder.num_chunks

        def add(name: str, work: float, graphs: float, gradients: float) -> None:
            parts = {
                "features": 0.0 if gradients else features,  # gone when the loss is there
                "gradients": gradients,
                "kept activations": graphs,
                "work": max(0.0, work),
            }
            if name not in moments or sum(parts.values()) > sum(moments[name][part] for part in parts):
                moments[name] = always | parts

        forward, backward = max(encoder.forward_peaks[first:]), max(encoder.later_backward_peaks)
        all_graphs = self.graphs(forgotten)
        handed = costs.handed_bytes * encoder.rows if encoder.num_chunks == 1 else 0.0
        add("encoder, last chunk forward", forward + handed - shared, all_graphs + (self.kept - 1) * whole, 0.0)
        add("recurrent part", tail.peak_bytes, all_graphs + self.kept * whole, 0.0)
        add(
            "encoder, last chunk backward",
            encoder.first_backward_peak - shared,
            all_graphs + (self.kept - 1) * whole,
            tail.end_bytes,
        )
        if self.kept > 1:
            graphs = all_graphs + (self.kept - 2) * whole
            add("encoder, kept chunk backward", backward - shared, graphs, gradients)
        done = 0
        for count, at in self.groups:
            done += count
            add("encoder forward", self.first_pass_peak(at), self.graphs(done - 1), 0.0)
            if at > first and encoder.gradients:
                peak = max([*encoder.forward_peaks[first:at], *encoder.later_backward_peaks[first:at]]) - shared
                boundary = encoder.outputs[at - 1] if self.is_cut(at) else 0.0
                work = peak + boundary
                add("encoder backward, a chunk replayed", work, self.graphs(done - 1), gradients)
            if self.is_cut(at):
                work = max(encoder.later_backward_peaks[at:]) - encoder.before[at] - self.behind(at)
                add("encoder backward, kept stages", work, self.graphs(done), gradients)
        moments["optimiser"] = {
            **always,
            "frozen stages' output": 0.0,
            "gradients": gradients,
            "work": costs.optimiser_work_bytes,
        }
        return moments

    def first_pass_peak(self, at: int) -> float:
        peak = max(self.encoder.no_grad_peaks[:at], default=0.0)
        if self.is_cut(at):
            peak = max(peak, max(self.encoder.forward_peaks[at:]) - self.encoder.before[at])
        return peak
