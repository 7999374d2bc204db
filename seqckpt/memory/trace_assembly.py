"""From what hooks and profiler recorded of a step to the calls and moments of a trace.

Which module a node of the backward pass belongs to follows from its number: autograd numbers nodes as forward makes
them, thread by thread, and the profiler writes that number beside each node that it sees run. The engine runs nodes
from the highest number down, so the backward of one call is one stretch of time, from the begin of its first node to
the end of its last one and of what it releases. Accumulations of gradients, which have no number, follow the node that
gave the gradient.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any

import torch

from seqckpt.memory.allocated import is_backward_node, memory_changes
from seqckpt.memory.trace_hooks import ForwardCall, StepRecorder, is_plain_row
from seqckpt.memory.trace_records import ModuleCall, Moment

__all__ = ["assemble"]


@dataclass
class _Span:
    """One run, forward or backward, of the forward call at `forward`, in nanoseconds."""

    forward: int
    phase: str
    begin: int
    end: int
    parent: int | None = None


def assemble(
    recorder: StepRecorder, events: list[Any], device: torch.device, begin: int, end: int
) -> tuple[list[ModuleCall], list[Moment]]:
    """Put the records of one step together: its calls and its timeline; begin and end in nanoseconds since 1970."""
    steps = _Steps(memory_changes(events, device))
    spans = [_Span(i, "forward", call.begin, call.end) for i, call in enumerate(recorder.calls)]
    spans += _backward_spans(recorder.calls, events, steps, end)
    spans.sort(key=lambda span: (span.begin, -span.end))
    _find_parents(spans)
    bounds = sorted({begin, end, *(t for span in spans for t in (span.begin, span.end) if begin <= t <= end)})
    peaks = [steps.peak(a, b) for a, b in pairwise(bounds)]
    activations = _Steps(sorted(recorder.activation_changes, key=itemgetter(0)))
    gradients = _Steps(recorder.gradient_changes)
    timeline = _timeline(recorder, spans, bounds, peaks, (steps, activations, gradients))
    seconds = _device_seconds(events, spans, device)
    position_of = {span.forward: i for i, span in enumerate(spans) if span.phase == "forward"}
    calls = []
    for i, span in enumerate(spans):
        inside = peaks[bisect_left(bounds, span.begin) : bisect_left(bounds, span.end)]
        peak = max((level for level, _ in inside), default=steps.at(span.begin))
        call = ModuleCall(
            phase=span.phase,
            forward=position_of[span.forward],
            parent=span.parent,
            start_seconds=(span.begin - begin) / 1e9,
            seconds=(span.end - span.begin) / 1e9 if seconds is None else seconds[i],
            before_bytes=steps.at(span.begin),
            peak_bytes=peak,
            after_bytes=steps.at(span.end),
            activations_before_bytes=activations.at(span.begin),
            gradients_before_bytes=gradients.at(span.begin),
            allocated_bytes=steps.gained(span.begin, span.end),
            **_describe(recorder.calls[span.forward], is_forward=span.phase == "forward"),
        )
        calls.append(call)
    return calls, timeline


def _describe(call: ForwardCall, *, is_forward: bool) -> dict[str, Any]:
    """What is known of a call from its hooks alone."""
    described = {"module": call.name, "kind": type(call.module).__name__, "is_replay": call.is_replay}
    if not is_forward:
        return described
    trained = [p.numel() * p.element_size() for p in call.module.parameters() if p.requires_grad]
    return described | {
        "saved_bytes": call.saved_bytes,
        "saves": tuple(call.saves),
        "input_storage": call.input_storage,
        "output_storage": call.output_storage,
        "follows": call.follows,
        "shares_arguments": call.shares_arguments,
        "is_row": is_plain_row(call.module),
        "parameter_bytes": sum(trained),
        "largest_parameter_bytes": max(trained, default=0),
    }


# -------------------------------------------------------------------- when modules ran


def _backward_spans(calls: Sequence[ForwardCall], events: list[Any], steps: _Steps, end: int) -> list[_Span]:
    nodes = sorted((event for event in events if is_backward_node(event)), key=lambda node: node.start_ns())
    begins = [node.start_ns() for node in nodes]
    owners = _Owners(calls, nodes, events)
    spans: dict[int, _Span] = {}
    of_thread: dict[int, int | None] = {}  # the call of the last numbered node
    for node in nodes:
        if node.sequence_nr() >= 0:
            of_thread[node.start_thread_id()] = owners.find(node.fwd_thread_id(), node.sequence_nr())
        owner = of_thread.get(node.start_thread_id())
        following = bisect_left(begins, node.end_ns())
        node_end = steps.end_of_release(node.end_ns(), begins[following] if following < len(begins) else end)
        while owner is not None:
            span = spans.setdefault(owner, _Span(owner, "backward", node.start_ns(), node_end))
            span.end = max(span.end, node_end)
            owner = calls[owner].parent
    return list(spans.values())


class _Owners:
    """Which call made a node of a thread."""

    def __init__(self, calls: Sequence[ForwardCall], nodes: list[Any], events: list[Any]) -> None:
        self.calls = calls
        makers = [i for i, call in enumerate(calls) if call.first_node < call.end_node]
        threads = {node.fwd_thread_id() for node in nodes if node.sequence_nr() >= 0}
        of_call = {i: next(iter(threads), 0) for i in makers} if len(threads) < 2 else self._threads(makers, events)
        self.of_thread: dict[int, list[int]] = {}  # calls in order of their begin, and of their first node
        for i, thread in of_call.items():
            self.of_thread.setdefault(thread, []).append(i)
        self.first_nodes = {thread: [calls[i].first_node for i in of] for thread, of in self.of_thread.items()}

    def _threads(self, makers: list[int], events: list[Any]) -> dict[int, int]:
        """The thread that each call ran in: that of the first operator seen in it."""
        operators = sorted((e.start_ns(), e.start_thread_id()) for e in events if e.sequence_nr() >= 0)
        times = [time for time, _ in operators]
        found = {}
        for i in makers:
            k = bisect_left(times, self.calls[i].begin)
            if k < len(operators) and times[k] <= self.calls[i].end:
                found[i] = operators[k][1]
        return found

    def find(self, thread: int, node: int) -> int | None:
        if thread not in self.of_thread:
            return None
        k = bisect_right(self.first_nodes[thread], node) - 1
        owner: int | None = self.of_thread[thread][k] if k >= 0 else None
        while owner is not None and node >= self.calls[owner].end_node:
            owner = self.calls[owner].parent
        return owner


def _find_parents(spans: list[_Span]) -> None:
    """Set each span's parent: the innermost one open when it begins. Spans are in order of their begin."""
    open_spans: list[int] = []
    for i, span in enumerate(spans):
        while open_spans and spans[open_spans[-1]].end < span.end:
            open_spans.pop()
        span.parent = open_spans[-1] if open_spans else None
        open_spans.append(i)


# -------------------------------------------------------------------- what was allocated


class _Steps:
    """A number of bytes that changes at known times, from 0."""

    def __init__(self, changes: Sequence[tuple[int, int]]) -> None:
        self.times = [time for time, _ in changes]
        self.levels = [0, *accumulate(num_bytes for _, num_bytes in changes)]  # levels[i]: before change i
        self.gains = [0, *accumulate(max(num_bytes, 0) for _, num_bytes in changes)]

    def at(self, time: int) -> int:
        return self.levels[bisect_right(self.times, time)]

    def end_of_release(self, time: int, limit: int) -> int:
        """The time of the last release that follows `time` at once, before `limit` and before anything is taken."""
        k = bisect_right(self.times, time)
        while k < len(self.times) and self.levels[k + 1] < self.levels[k] and self.times[k] < limit:
            time, k = self.times[k], k + 1
        return time

    def gained(self, begin: int, end: int) -> int:
        return self.gains[bisect_right(self.times, end)] - self.gains[bisect_right(self.times, begin)]

    def peak(self, begin: int, end: int) -> tuple[int, int]:
        """The most bytes between two times, and the first time of it."""
        a, b = bisect_right(self.times, begin), bisect_right(self.times, end)
        levels = self.levels[a : b + 1]
        most = max(levels)
        k = levels.index(most)
        return most, begin if k == 0 else self.times[a + k - 1]


def _timeline(
    recorder: StepRecorder,
    spans: list[_Span],
    bounds: list[int],
    peaks: list[tuple[int, int]],
    levels: tuple[_Steps, _Steps, _Steps],
) -> list[Moment]:
    """One moment between each two bounds; `levels`: what was allocated, held by autograd, and in gradients."""
    steps, activations, gradients = levels
    moments = []
    open_spans: list[_Span] = []
    following = 0
    for (begin, end), (peak, peak_time) in zip(pairwise(bounds), peaks, strict=True):
        open_spans = [span for span in open_spans if span.end > begin]
        while following < len(spans) and spans[following].begin <= begin:
            if spans[following].end > begin:
                open_spans.append(spans[following])
            following += 1
        innermost = open_spans[-1] if open_spans else None
        call = None if innermost is None else recorder.calls[innermost.forward]
        moments.append(
            Moment(
                module="" if call is None else call.name,
                phase="other" if innermost is None else innermost.phase,
                is_replay=call is not None and call.is_replay,
                start_seconds=(begin - bounds[0]) / 1e9,
                peak_seconds=(peak_time - bounds[0]) / 1e9,
                peak_bytes=peak,
                end_bytes=steps.at(end),
                activation_bytes=activations.at(peak_time),
                gradient_bytes=gradients.at(peak_time),
            )
        )
    return moments


def _device_seconds(events: list[Any], spans: list[_Span], device: torch.device) -> list[float] | None:
    """Seconds that a GPU worked for each span; None on the CPU, and where the profiler was shown no kernels.

    A kernel runs when its turn comes, after the module that started it may have ended: it counts where it was started.
    """
    if device.type == "cpu":
        return None
    started = {e.correlation_id(): e.start_ns() for e in events if e.device_type().name == "CPU"}
    kernels = sorted(
        (started[e.linked_correlation_id()], e.duration_ns())
        for e in events
        if e.device_type().name == device.type.upper() and e.linked_correlation_id() in started and e.duration_ns() > 0
    )
    if not kernels:
        return None
    work = _Steps(kernels)
    return [work.gained(span.begin, span.end) / 1e9 for span in spans]
