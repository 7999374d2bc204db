"""Case planning: what the planner promises, held against real steps, beside two simpler ways to fill the same budget.

The model of the video case. A budget is a share (in %) of the plain run's predicted peak, everything included. For
each, the planned schedule, the best one that keeps whole chunks, and the best one that recomputes all but the last
chunk run in turn, `steps` times (0: memory only), gradients None before each step; times are medians. The measured peak
is the allocator's own over the step, with parameters and frames, which are there before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from seqckpt.bench.case import Case, Settings
from seqckpt.bench.hardware import default_device
from seqckpt.bench.report import Report
from seqckpt.bench.video_model import build_parts, build_video_model, parse_choice
from seqckpt.core import Schedule
from seqckpt.memory import (
    Costs,
    Fixed,
    Sample,
    measure,
    peak_allocated_bytes,
    predict_plain,
    smallest_budget,
    solve,
    time_step,
)
from seqckpt.progress import progress_bar
from seqckpt.units import format_bytes

__all__ = ["PLANNING"]

_WAYS = {"planned": Fixed(), "whole chunks": Fixed(depth=0), "recompute all": Fixed(depth=0, chunks=1)}
_HEADS = ["budget", "way", "predicted peak", "measured peak", "of budget", "predicted step", "measured step"]
_HEADS += ["recomputed", "schedule"]


def run_planning(settings: Settings, report: Report) -> None:
    """Plan for each budget, run the schedules in turn, and set what was promised beside what was measured."""
    num_frames, pixels, device = settings["frames"], settings["pixels"], default_device()
    model = build_video_model(build_parts(settings["encoder"], channels_last=False), parse_choice("25"), 50)
    frames = [torch.randint(256, (num_frames, 3, pixels, pixels), dtype=torch.uint8, device=device)]
    sample = Sample(frames, [torch.randint(7, (num_frames,), device=device)])
    started = time.perf_counter()
    costs = measure(model, sample, budget_bytes=2**60)
    plain = predict_plain(costs)
    report.add_note(
        f"The plain run, predicted: {format_bytes(plain.peak_bytes)}, {plain.step_seconds:.2f} s a step. Measuring the "
        f"pieces took {time.perf_counter() - started:.1f} s."
    )
    for share in progress_bar(settings["shares"], desc="planning", unit="budget"):
        budget = plain.peak_bytes * share // 100
        for record in _measure(model, sample, costs, budget, num_steps=settings["steps"]):
            report.records.append({"share": share} | record)
    title = f"{settings['encoder']}, {num_frames} frames of {pixels} px, LSTM 256"
    report.add_table(title, _HEADS, [_describe(record) for record in report.records])


def _measure(model: Any, sample: Sample, costs: Costs, budget: int, *, num_steps: int) -> list[dict[str, Any]]:
    schedules: dict[str, Schedule] = {}
    records = []
    for way, fixed in _WAYS.items():
        if smallest_budget(costs, fixed) <= budget:
            schedules[way] = solve(costs, budget, fixed)
        else:
            least = format_bytes(smallest_budget(costs, fixed))
            records.append({"budget_bytes": budget, "way": way, "error": f"not feasible: the least is {least}"})
    seconds: dict[str, list[float]] = {way: [] for way in schedules}
    for _ in range(num_steps):
        for way, schedule in schedules.items():
            seconds[way].append(time_step(_step_of(model, sample, schedule), next(model.parameters()).device))
    there = costs.parameter_bytes + costs.frame_bytes
    for way, schedule in schedules.items():
        peak = there + peak_allocated_bytes(_step_of(model, sample, schedule), next(model.parameters()).device)
        record = {"budget_bytes": budget, "way": way, "measured_peak_bytes": peak, "schedule": schedule.to_dict()}
        record |= {"measured_step_seconds": median(seconds[way]) if seconds[way] else None, "seconds": seconds[way]}
        records.append(record | {"described": schedule.describe_choices()})
    model.zero_grad(set_to_none=True)
    return records


def _step_of(model: Any, sample: Sample, schedule: Schedule) -> Callable[[], None]:
    def step() -> None:
        loss, _ = model(sample.frames, sample.targets)
        loss.backward()

    schedule.apply(model)
    model.zero_grad(set_to_none=True)
    return step


def _describe(record: dict[str, Any]) -> list[str]:
    budget = f"{record['share']} % = {format_bytes(record['budget_bytes'])}"
    if "error" in record:
        return [budget, record["way"], record["error"], *[""] * 6]
    schedule, peak = record["schedule"], record["measured_peak_bytes"]
    predicted, seconds = schedule["predicted_peak_bytes"], record["measured_step_seconds"]
    expected = schedule["predicted_step_seconds"]
    cells = [budget, record["way"], format_bytes(predicted), f"{format_bytes(peak)} ({peak / predicted - 1:+.1%})"]
    cells += [f"{peak / record['budget_bytes']:.1%}", f"{expected:.2f} s"]
    cells += ["" if seconds is None else f"{seconds:.2f} s ({seconds / expected - 1:+.0%})"]
    cells += [f"{schedule['recompute_fraction']:.0%}", record["described"]]
    return cells


PLANNING = Case(
    "planning",
    "what the planner promises, held against real steps, for several budgets",
    run_planning,
    settings={"encoder": "resnet18", "pixels": 112, "frames": 500, "shares": (5, 10, 20, 40, 80), "steps": 3},
    quick={"encoder": "small", "pixels": 64, "frames": 100, "shares": (20, 50), "steps": 1},
)
