"""Case nin: network in network on CIFAR-shaped data, the notebook's comparison with a measure that sees tensors.

Published: 22 % less memory at 14 to 16 % more time, with `segments=1` of torch's checkpoint_sequential, which forgets
nothing, by a measure (tracemalloc) of the Python heap.
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
from seqckpt.core import checkpoint_sequential
from seqckpt.progress import progress_bar
from seqckpt.units import format_bytes

__all__ = ["NIN", "build_nin_subject"]

_EPOCH_IMAGES = 45_000  # of the notebook, with 5,000 of CIFAR-10's kept for validation


def build_nin_subject(*, way: str, batch: int, segments: int = 1) -> Subject:
    """A subject for "plain", "torch" or "ours", the latter two with so many segments."""
    torch.manual_seed(0)
    model = build_nin().to(default_device())
    images = torch.randn(batch, 3, 32, 32, device=default_device())
    targets = torch.randint(10, (batch,), device=default_device())
    forward = _forward_of(model, way, segments)

    def step() -> None:
        functional.cross_entropy(forward(images), targets).backward()

    return Subject(step, dict(model.named_parameters()))


def _forward_of(model: Any, way: str, segments: int) -> Callable[[Tensor], Tensor]:
    if way == "torch":
        return lambda x: torch_checkpoint_sequential(model, segments, x, use_reentrant=False)
    if way == "ours":
        return lambda x: checkpoint_sequential(model, x, segments=segments)
    return model


def run_nin(settings: Settings, report: Report) -> None:
    """Peak and time of each way, and what an epoch of 45,000 images comes to."""
    batch = settings["batch"]
    ways: dict[str, dict[str, Any]] = {"plain": {"way": "plain"}}
    for segments in settings["torch_segments"]:
        ways[f"torch's checkpoint_sequential, segments={segments}"] = {"way": "torch", "segments": segments}
    for segments in settings["segments"]:
        ways[f"our checkpoint_sequential, segments={segments}"] = {"way": "ours", "segments": segments}
    ways = {name: {**arguments, "batch": batch} for name, arguments in ways.items()}
    with progress_bar(total=len(ways) * (settings["steps"] + 2), desc="nin", unit="step") as bar:
        figures = measure_side_by_side(
            ways, build_nin_subject, num_steps=settings["steps"], tick=lambda name: bar.update()
        )
    plain = figures["plain"]
    rows = []
    for figure in figures.values():
        report.records.append(figure.to_record(batch=batch))
        peak, seconds = figure.peak_bytes, figure.step_seconds
        if peak is None or seconds is None or not plain.peak_bytes or not plain.step_seconds:
            rows.append([figure.name, figure.problem or "plain failed", "", "", ""])
            continue
        epoch = f"{seconds * _EPOCH_IMAGES / batch:.0f} s"
        less, more = f"{peak / plain.peak_bytes - 1:+.0%}", f"{seconds / plain.step_seconds - 1:+.0%}"
        rows.append([figure.name, format_bytes(peak), less, f"{seconds:.3g} s, {epoch} an epoch", more])
    title = f"network in network, batches of {batch} images of 32 x 32"
    report.add_table(title, ["way", "peak of a step", "memory", "median step", "time"], rows)


NIN = Case(
    "nin",
    "network in network on CIFAR-shaped data: peak tensor bytes and time, torch's segments=1 included",
    run_nin,
    settings={"batch": 256, "steps": 5, "torch_segments": (1, 2, 4), "segments": (2, 3, 4)},
    quick={"batch": 16, "steps": 2, "torch_segments": (1, 2), "segments": (2, 3)},
)
