"""What an encoder's stages cost, measured on chunks of a few frames: seconds and bytes, forward and backward.

A chunk goes through all stages in one graph, with marks between them: once under a clock, once under the allocator's
record and saved-tensor hooks. Marks in backward are set by hooks on the graph's nodes, which change nothing in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_flatten

from seqckpt.memory.allocated import AllocationRecord
from seqckpt.memory.clock import Clock, repeat_for_a_moment
from seqckpt.memory.costs import Curve, StageCosts

__all__ = ["measure_stages"]


def measure_stages(
    stages: Sequence[Callable[[Any], Any]], names: Sequence[str], load: Callable[[int], Any], sizes: Sequence[int]
) -> list[StageCosts]:
    """Measure an encoder's stages on chunks of these sizes.

    `load(rows)` reads a chunk and makes floats of it: it is measured as a stage in front of the others.
    """
    device = _device_of(stages)
    row = [lambda rows: load(rows), *stages]
    times = {size: _Times(row, size, device) for size in sizes}
    # One frame as well: there the weights' gradients are the peak, not what grows with the frames.
    bytes_ = {size: _Bytes(row, size, device) for size in sorted({1, *sizes[:2]})}
    for p in (p for stage in row for p in _parameters(stage)):
        p.grad = None
    seen: set[int] = set()
    costs = []
    for i, name in enumerate(["reading", *names]):
        new = {id(p): p for p in _parameters(row[i]) if p.requires_grad and id(p) not in seen}
        seen |= new.keys()

        def curve(of: dict[int, Any], values: Callable[[Any], Sequence[float]], i: int = i) -> Curve:
            return Curve(tuple((size, float(values(one)[i])) for size, one in of.items()))

        costs.append(
            StageCosts(
                name=name,
                no_grad_seconds=curve(times, lambda one: one.no_grad),
                forward_seconds=curve(times, lambda one: one.forward),
                backward_seconds=curve(times, lambda one: one.backward),
                output_bytes=curve(bytes_, lambda one: one.outputs),
                saved_bytes=curve(bytes_, lambda one: one.saved),
                no_grad_peak=curve(bytes_, lambda one: one.no_grad_peaks),
                forward_peak=curve(bytes_, lambda one: one.forward_peaks),
                backward_peak=curve(bytes_, lambda one: one.backward_peaks),
                output_is_saved=bytes_[sizes[0]].is_saved[i],
                output_is_saved_later=bytes_[sizes[0]].is_saved_later[i],
                gradient_bytes=sum(p.numel() * p.element_size() for p in new.values()),
                largest_gradient_bytes=max((p.numel() * p.element_size() for p in new.values()), default=0),
                copied_gradient_bytes=max(
                    (p.numel() * p.element_size() for p in new.values() if p.dim() == 2), default=0
                ),
            )
        )
    return costs


class _Times:
    """Seconds of every stage in chunks of one size: without gradients, in grad mode, backward; the least of some."""

    def __init__(self, row: Sequence[Callable[..., Any]], size: int, device: torch.device) -> None:
        for p in (p for stage in row for p in _parameters(stage) if p.requires_grad):
            p.grad = torch.zeros_like(p)  # there before, as in every chunk but the first
        runs = repeat_for_a_moment(lambda: self.run(row, size, device))
        self.no_grad, self.forward, self.backward = (
            [min(values) for values in zip(*kind, strict=True)] for kind in zip(*runs, strict=True)
        )

    def run(self, row: Sequence[Callable[..., Any]], size: int, device: torch.device) -> list[list[float]]:
        clocks = [Clock(device) for _ in range(3)]
        with torch.no_grad():
            _forward(row, size, lambda i, x: clocks[0].mark())
        order: list[int] = []

        def reached(i: int) -> None:
            order.append(i)
            clocks[2].mark()

        marker = _BackwardMarker(reached)

        def between(i: int, x: Any) -> None:
            marker.watch(i - 1, x)
            clocks[1].mark()

        result = _forward(row, size, between)
        _backward(result)
        clocks[2].mark()
        backward = [0.0] * len(row)
        for i, seconds in zip(order, clocks[2].seconds(), strict=True):
            backward[i] += seconds
        return [clocks[0].seconds(), clocks[1].seconds(), backward]


class _Bytes:
    """Bytes of every stage in one size of chunk: see StageCosts."""

    def __init__(self, row: Sequence[Callable[..., Any]], size: int, device: torch.device) -> None:
        self.outputs = [0.0] * len(row)
        self.saved = [0.0] * len(row)
        self.is_saved, self.is_saved_later = [False] * len(row), [False] * len(row)
        parameters = {p.untyped_storage().data_ptr() for stage in row for p in _parameters(stage)}
        storages: dict[int, int] = {}
        outputs: list[list[StorageWeakRef]] = []
        for p in (p for stage in row for p in _parameters(stage) if p.requires_grad):
            p.grad = torch.zeros_like(p)

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                storages.setdefault(storage.data_ptr(), storage.nbytes())
            return tensor.detach()  # a stage's own output, kept with its history, would keep its graph

        with AllocationRecord(device) as record:
            marker = _BackwardMarker(lambda i: record.mark(f"backward {i}"))
            with torch.no_grad():
                _forward(row, size, lambda i, x: record.mark(f"no_grad {i}"))
            record.mark("between")

            def after(i: int, x: Any) -> None:
                if i:
                    marker.watch(i - 1, x)
                    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(x)}
                    self.outputs[i - 1] = sum(t.numel() * t.element_size() for t in _tensors(x))
                    self.saved[i - 1] = sum(storages.values()) - sum(self.saved[: i - 1])
                    self.is_saved[i - 1] = held.keys() <= storages.keys()
                    outputs.append([StorageWeakRef(t.untyped_storage()) for t in _tensors(x)])
                record.mark(f"forward {i}")

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                result = _forward(row, size, after)
            alive = [not any(ref.expired() for ref in refs) for refs in outputs[:-1]]  # the last one is the result
            self.is_saved_later[:-1] = [now and not saved for now, saved in zip(alive, self.is_saved, strict=False)]
            _backward(result)
            del result
        base = {"no_grad": 0, "forward": 0, "backward": 0}
        for interval in record.intervals:
            kind, _, number = interval.name.partition(" ")
            if kind == "between":
                base["forward"] = base["backward"] = interval.end_bytes
        peaks = {kind: [0.0] * (len(row) + 1) for kind in base}
        for interval in record.intervals:
            kind, _, number = interval.name.partition(" ")
            if number:
                peak = interval.peak_bytes - base[kind]
                peaks[kind][int(number)] = max(peaks[kind][int(number)], float(peak))
        self.no_grad_peaks, self.forward_peaks, self.backward_peaks = (peaks[kind][: len(row)] for kind in base)


class _BackwardMarker:
    """Says when backward reaches a stage: when the gradient of what it returned is there."""

    def __init__(self, mark: Callable[[int], object]) -> None:
        self.mark = mark
        self.last: Any = None

    def watch(self, i: int, x: Any) -> None:
        nodes = [t.grad_fn for t in _tensors(x) if t.grad_fn is not None]
        if i < 0 or not nodes or nodes[0] is self.last:
            return
        self.last = nodes[0]
        fired: list[bool] = []

        def reached(gradients: Any) -> None:
            if not fired:
                fired.append(True)
                self.mark(i)

        for node in nodes:
            node.register_prehook(reached)


def _forward(row: Sequence[Callable[..., Any]], size: int, between: Callable[[int, Any], object]) -> Any:
    """Run the row; `between(i, x)` is called before stage i, and at the end."""
    x: Any = size
    for i, stage in enumerate(row):
        between(i, x)
        x = stage(x)
    between(len(row), x)
    return x


def _backward(result: Any) -> None:
    roots = [t for t in _tensors(result) if t.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])


def _tensors(x: Any) -> list[Tensor]:
    return [t for t in tree_flatten(x)[0] if isinstance(t, Tensor)]


def _parameters(stage: Any) -> list[nn.Parameter]:
    return list(stage.parameters()) if hasattr(stage, "parameters") else []


def _device_of(stages: Sequence[Any]) -> torch.device:
    return next((p.device for stage in stages for p in _parameters(stage)), torch.device("cpu"))
