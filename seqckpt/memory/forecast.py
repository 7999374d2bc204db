"""The peak of a step in which ranges of a model's layers are checkpointed, foretold from a trace of the plain step.

Everything is put together from what was measured: which storages each layer saves (shared ones counted once), and by
how much memory rose above activations and gradients while a layer ran forward and backward. A checkpointed range keeps
its input. In backward, its replay stands on the inputs of this range and of those before, the gradients of all that
comes after, the gradient of its result, which the engine holds until the range is done, and its result, which is let go
of as its backward begins:

    level of layer i in range [a, b) =  what is kept before a  +  input of a  +  saved by a..i, and the result of b - 1
                                      + gradients of parameters after i       +  i's own work
                                      + d(result of b - 1)

A layer of one operation has its result (if it saves it) and d(result) in its level already; in one of several, the
plain step lets go of them before the peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from seqckpt.memory.layers import Layer
from seqckpt.memory.trace_records import MemoryTrace, Moment

__all__ = ["Forecast"]

Range = tuple[int, int]


class Forecast:
    """Peaks for one trace and its row of layers.

    Args:
        first: layers before this one are never checkpointed.
    """

    def __init__(self, trace: MemoryTrace, layers: Sequence[Layer], first: int = 0) -> None:
        self.layers, self.first = list(layers), first
        self._bytes = trace.storage_bytes
        start = layers[0].forward.start_seconds
        before = (call for call in trace.calls if call.phase == "forward" and call.start_seconds < start)
        self.saved_before_row = {storage for call in before for storage in call.saves}
        self.inputs = [layer.forward.input_storage for layer in layers]
        self.results = [layer.forward.output_storage for layer in layers]
        self.forward_work = [layer.forward.peak_bytes - layer.forward.before_bytes for layer in layers]
        self.backward_work = [_work_of_backward(layer) for layer in layers]
        self.later_gradients = [layer.backward.gradients_before_bytes if layer.backward else 0 for layer in layers]
        saved = self.saved_before_row.union(*(layer.saves for layer in layers))
        peak_after_row, self.peak_outside = _peaks_around(trace, layers)
        self.work_after_row = peak_after_row - self.size(saved)

    def saved_before(self, layer: int) -> set[int]:
        """Storages that are held when a layer begins in the plain step."""
        return self.saved_before_row.union(*(before.saves for before in self.layers[:layer]))

    def size(self, storages: Iterable[int | None]) -> int:
        """Bytes of storages."""
        return sum(self._bytes[s] for s in storages if s is not None)

    def costs_from(self, start: int) -> list[int]:
        """Peaks of the ranges from layer `start` to each later end, without what is kept before them."""
        own = _Held(self._bytes, [self.inputs[start]])
        base = own.bytes
        # A range that begins with a layer in place is given a copy to work on.
        copy = base if self.inputs[start] == self.results[start] else 0
        costs, most = [], 0
        for i in range(start, len(self.layers)):
            forward = own.bytes_with(self.inputs[i]) + self.forward_work[i]
            own.add(self.layers[i].saves)
            result = gradient = self.size({self.results[i]})
            here = own.bytes + self.later_gradients[i] + self.backward_work[i]
            missing = own.bytes_with(self.results[i]) - own.bytes
            as_last = result + gradient if self.layers[i].has_children else missing
            replay = forward + self.later_gradients[i] + gradient
            first_run = 2 * base + self.forward_work[i] + self.size({self.inputs[i]})
            costs.append(copy + max(here + as_last, most + gradient + result, replay, first_run))
            most = max(most, here, forward + self.later_gradients[i])
        return costs

    def plain_cost(self, start: int) -> int:
        """Peak of everything from layer `start` on when none of it is checkpointed, without what is kept before."""
        own = _Held(self._bytes, [self.inputs[start] if start < len(self.layers) else self.results[-1]])
        most = 0
        for i in range(start, len(self.layers)):
            most = max(most, own.bytes_with(self.inputs[i]) + self.forward_work[i])
            own.add(self.layers[i].saves)
            most = max(most, own.bytes + self.later_gradients[i] + self.backward_work[i])
        return max(most, own.bytes + self.work_after_row)

    def peak(self, ranges: Sequence[Range]) -> int:
        """Peak of the step with these ranges checkpointed, above its start."""
        kept = _Held(self._bytes, self.saved_before_row)
        most = self.peak_outside
        start = 0
        for a, b in [*ranges, (len(self.layers), len(self.layers))]:
            for i in range(start, a):  # plain
                most = max(most, kept.bytes_with(self.inputs[i]) + self.forward_work[i])
                kept.add(self.layers[i].saves)
                most = max(most, kept.bytes + self.later_gradients[i] + self.backward_work[i])
            if a < b:
                kept.add([self.inputs[a]])
                apart = kept.bytes - self.size({self.inputs[a]})
                most = max(most, apart + self.costs_from(a)[b - 1 - a])
            start = b
        return max(most, kept.bytes_with(self.results[-1]) + self.work_after_row)


class _Held:
    """Storages that are held at a time, and their bytes: a sum that is kept while they become more."""

    def __init__(self, bytes_of: Sequence[int], storages: Iterable[int | None]) -> None:
        self._bytes_of = bytes_of
        self._held: set[int] = set()
        self.bytes = 0
        self.add(storages)

    def add(self, storages: Iterable[int | None]) -> None:
        for storage in storages:
            if storage is not None and storage not in self._held:
                self._held.add(storage)
                self.bytes += self._bytes_of[storage]

    def bytes_with(self, storage: int | None) -> int:
        """Bytes where that one is held as well."""
        return self.bytes if storage is None or storage in self._held else self.bytes + self._bytes_of[storage]


def _work_of_backward(layer: Layer) -> int:
    call = layer.backward
    if call is None:
        return 0
    return call.peak_bytes - call.activations_before_bytes - call.gradients_before_bytes


def _peaks_around(trace: MemoryTrace, layers: Sequence[Layer]) -> tuple[int, int]:
    """The peak between forward and backward of the row, and that before its forward and after its backward."""
    first, last = layers[0].forward, layers[-1].forward
    backwards = [layer.backward for layer in layers if layer.backward]
    turn = backwards[-1].start_seconds if backwards else trace.totals.seconds
    end = backwards[0].start_seconds + backwards[0].seconds if backwards else turn
    after = last.start_seconds + last.seconds
    within = (m for m in trace.timeline if after <= m.start_seconds < turn)
    outside = (m for m in trace.timeline if m.start_seconds < first.start_seconds or m.start_seconds >= end)
    return _peak(within), _peak(outside)


def _peak(moments: Iterable[Moment]) -> int:
    return max((moment.peak_bytes for moment in moments), default=0)
