"""Case planning: what the planner promises, held against real steps, beside two simpler ways to fill the same budget.

The model of the video case. A budget is a share (in %) of the plain run's predicted peak, everything included. For
each, the planned schedule, the best one that keeps whole chunks, and the best one that recomputes all but the last
chunk run in turn, `steps` times (0: memory only), gradients None before each step; times are medians. The measured peak
is the allocator's own over the step, with parameters and frames, which are there before. One process does it all: a
plan is made for the process whose pieces were measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from seqckpt.bench.case import Case, Settings, check_encoder
from seqckpt.bench.hardware import default_device
from seqckpt.bench.report import Report
from seqckpt.bench.video_model import build_parts, build_video_model, parse_choice
from seqckpt.bench.worker import Worker
from seqckpt.core import Schedule
from seqckpt.memory import (
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

__all__ = ["PLANNING", "Planning"]

_WAYS = {"planned": Fixed(), "whole chunks": Fixed(depth=0), "recompute all": Fixed(depth=0, chunks=1)}
_HEADS = ["budget", "way", "predicted peak", "measured peak", "of budget", "predicted step", "measured step"]
_HEADS += ["recomputed", "schedule"]


class Planning:
    """A model and a sample whose pieces were measured: schedules are planned from that, and run."""

    def __init__(self, *, encoder: str, pixels: int, num_frames: int) -> None:
        self._device = torch.device(default_device())
        self._model = build_video_model(build_parts(encoder, channels_last=False), parse_choice("25"), 50)
        frames = torch.randint(256, (num_frames, 3, pixels, pixels), dtype=torch.uint8, device=self._device)
        self._sample = Sample([frames], [torch.randint(7, (num_frames,), device=self._device)])
        started = time.perf_counter()
        self._costs = measure(self._model, self._sample, budget_bytes=2**60)
        self._measuring_seconds = time.perf_counter() - started

    def plain(self) -> dict[str, Any]:
        """Bytes and seconds predicted of the plain run, and the seconds that measuring the pieces took."""
        plain = predict_plain(self._costs)
        record = {"plain_peak_bytes": plain.peak_bytes, "plain_step_seconds": plain.step_seconds}
        return {**record, "measuring_seconds": self._measuring_seconds}

    def measure(self, budget_bytes: int, *, num_steps: int) -> list[dict[str, Any]]:
        """Plan each way within the budget, run them in turn, then take their peaks: a record for each way."""
        schedules: dict[str, Schedule] = {}
        records: list[dict[str, Any]] = []
        for way, fixed in _WAYS.items():
            least = smallest_budget(self._costs, fixed)
            if least <= budget_bytes:
                schedules[way] = solve(self._costs, budget_bytes, fixed)
            else:
                records.append({"way": way, "error": f"not feasible: the least is {format_bytes(least)}"})
        seconds: dict[str, list[float]] = {way: [] for way in schedules}
        for _ in range(num_steps):
            for way, schedule in schedules.items():
                seconds[way].append(time_step(self._step_of(schedule), self._device))
        there = self._costs.parameter_bytes + self._costs.frame_bytes
        for way, schedule in schedules.items():
            peak = there + peak_allocated_bytes(self._step_of(schedule), self._device)
            record = {"way": way, "measured_peak_bytes": peak, "schedule": schedule.to_dict()}
            record |= {"measured_step_seconds": median(seconds[way]) if seconds[way] else None, "seconds": seconds[way]}
            records.append(record | {"described": schedule.describe_choices()})
        self._model.zero_grad(set_to_none=True)
        return [{"budget_bytes": budget_bytes} | record for record in records]

    def _step_of(self, schedule: Schedule) -> Callable[[], None]:
        def step() -> None:
            loss, _ = self._model(self._sample.frames, self._sample.targets)
            loss.backward()

        schedule.apply(self._model)
        self._model.zero_grad(set_to_none=True)
        return step


def run_planning(settings: Settings, report: Report) -> None:
    """Plan for each budget, run the schedules in turn, and set what was promised beside what was measured."""
    model = {"encoder": settings["encoder"], "pixels": settings["pixels"], "num_frames": settings["frames"]}
    rows = []
    with (
        progress_bar(total=1 + len(settings["shares"]), desc="planning", unit="budget") as bar,
        Worker(Planning, **model) as worker,
    ):
        plain = worker.ask("plain")
        report.records.append(plain)
        bar.update()
        for share in settings["shares"]:
            budget = plain["plain_peak_bytes"] * share // 100
            records = [
                {"share": share} | record for record in worker.ask("measure", budget, num_steps=settings["steps"])
            ]
            report.records += records
            rows += [_describe(record) for record in records]
            bar.update()
    report.add_note(
        f"The plain run, predicted: {format_bytes(plain['plain_peak_bytes'])}, {plain['plain_step_seconds']:.2f} s a "
        f"step. Measuring the pieces took {plain['measuring_seconds']:.1f} s."
    )
    title = f"{settings['encoder']}, {settings['frames']} frames of {settings['pixels']} px, LSTM 256"
    report.add_table(title, _HEADS, rows)


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
    quick={"encoder": "small", "pixels": 64, "frames": 100, "shares": (40, 80), "steps": 1},
    least={"steps": 0},
    most={"shares": 100},
    check=lambda settings: check_encoder("encoder", settings["encoder"]),
)
