"""Case nin: network in network on CIFAR-shaped data, the notebook's comparison with a measure that sees tensors.

Published: 22 % less memory at 14 to 16 % more time, with `segments=1` of torch's checkpoint_sequential, which forgets
nothing, by a measure (tracemalloc) of the Python heap.

Cutting the row of layers saves nothing either, on a CPU: the peak is one kernel's, the backward of a 1 x 1 convolution
in the first block, with its input, both gradients, and copies of them. What helps is fewer images at once. Nothing in
this network ties the images of a batch together (no batch norm), so this library's choice is `ChunkedEncoder` over the
batch; and where the loss is a mean over images, as here, accumulating gradients over parts of the batch by hand does as
well, without a second forward. Dropout draws other numbers in chunks than for the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint_sequential as torch_checkpoint_sequential

from seqckpt.bench.case import Case, Settings
from seqckpt.bench.hardware import default_device
from seqckpt.bench.networks import build_nin
from seqckpt.bench.report import Report
from seqckpt.bench.subject import Subject
from seqckpt.bench.turns import measure_side_by_side
from seqckpt.core import ChunkedEncoder, checkpoint_sequential
from seqckpt.progress import progress_bar
from seqckpt.units import format_bytes

__all__ = ["NIN", "build_nin_subject"]

_EPOCH_IMAGES = 45_000  # of the notebook, with 5,000 of CIFAR-10's kept for validation


def build_nin_subject(*, way: str, batch: int, pieces: int = 1) -> Subject:
    """A subject for "plain", "accumulate", "torch", "ours" or "chunks": the last four in so many `pieces`."""
    torch.manual_seed(0)
    model = build_nin().to(default_device())
    parameters = dict(model.named_parameters())
    images = torch.randn(batch, 3, 32, 32, device=default_device())
    targets = torch.randint(10, (batch,), device=default_device())
    forward = _forward_of(model, way, pieces, batch)

    def step() -> None:
        functional.cross_entropy(forward(images), targets).backward()

    def accumulate() -> None:
        for part, wanted in zip(images.chunk(pieces), targets.chunk(pieces), strict=True):
            (functional.cross_entropy(model(part), wanted, reduction="sum") / batch).backward()

    return Subject(accumulate if way == "accumulate" else step, parameters)


def _forward_of(model: Any, way: str, pieces: int, batch: int) -> Callable[[Tensor], Tensor]:
    if way == "torch":
        return lambda x: torch_checkpoint_sequential(model, pieces, x, use_reentrant=False)
    if way == "ours":
        return lambda x: checkpoint_sequential(model, x, segments=pieces)
    if way == "chunks":
        chunked = ChunkedEncoder(model, -(-batch // pieces))
        return lambda x: chunked(x[None])[0]
    return model


def run_nin(settings: Settings, report: Report) -> None:
    """Peak and time of each way, and what an epoch of 45,000 images comes to."""
    batch = settings["batch"]
    ways: dict[str, dict[str, Any]] = {"plain": {"way": "plain"}}
    for segments in settings["torch_segments"]:
        ways[f"torch's checkpoint_sequential, segments={segments}"] = {"way": "torch", "pieces": segments}
    for segments in settings["segments"]:
        ways[f"our checkpoint_sequential, segments={segments}"] = {"way": "ours", "pieces": segments}
    for pieces in settings["chunks"]:
        size = -(-batch // pieces)
        ways[f"our ChunkedEncoder, {size} images at a time"] = {"way": "chunks", "pieces": pieces}
        ways[f"gradients accumulated by hand, {size} images at a time"] = {"way": "accumulate", "pieces": pieces}
    ways = {name: {**arguments, "batch": batch} for name, arguments in ways.items()}
    with progress_bar(total=len(ways) * (settings["steps"] + 1), desc="nin", unit="step") as bar:
        figures = measure_side_by_side(
            ways, build_nin_subject, num_steps=settings["steps"], tick=lambda name: bar.update()
        )
    plain = figures["plain"]
    rows = []
    for figure in figures.values():
        report.records.append(figure.to_record(batch=batch))
        peak, seconds = figure.peak_bytes, figure.step_seconds
        if figure.problem or peak is None or seconds is None or not plain.peak_bytes or not plain.step_seconds:
            rows.append([figure.name, figure.problem or "plain failed", "", "", "", ""])
            continue
        epoch = f"{seconds * _EPOCH_IMAGES / batch:,.0f} s"
        less, more = f"{peak / plain.peak_bytes - 1:+.0%}", f"{seconds / plain.step_seconds - 1:+.0%}"
        rows.append([figure.name, format_bytes(peak), less, f"{seconds:.3g} s", epoch, more])
    title = f"network in network, batches of {batch} images of 32 x 32"
    report.add_table(title, ["way", "peak of a step", "memory", "median step", "an epoch", "time"], rows)


NIN = Case(
    "nin",
    "network in network on CIFAR-shaped data: peak tensor bytes and time, torch's segments=1 included",
    run_nin,
    settings={"batch": 256, "steps": 5, "torch_segments": (1, 4), "segments": (4,), "chunks": (4, 8)},
    quick={"batch": 16, "steps": 2, "chunks": (2,)},
    least={"steps": 0},
    may_be_empty={"torch_segments", "segments", "chunks"},
)
