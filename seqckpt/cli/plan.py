"""`seqckpt plan`: the schedule for a budget, and the whole trade-off between memory and time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from seqckpt import build, training
from seqckpt.atomic import write_text
from seqckpt.cli.command import Command
from seqckpt.config import Config, load_config, write_config
from seqckpt.core import Schedule
from seqckpt.errors import UsageError
from seqckpt.memory import peak_allocated_bytes, predict_plain, smallest_budget, solve, time_step
from seqckpt.plots import PlanPoint, plot_trade_off
from seqckpt.progress import progress_bar
from seqckpt.units import format_bytes

__all__ = ["PLAN"]

_MEASURE = "--measure"
_NUM_BUDGETS = 12
_NUM_STEPS = 3  # of each schedule that is measured


@dataclass
class _Row:
    """One line of the table."""

    budget_bytes: int
    schedule: Schedule
    is_given: bool = False
    measured_peak_bytes: int | None = None
    measured_step_seconds: float | None = None


def _plan(arguments: Sequence[str], flags: frozenset[str]) -> int:
    config_name, config = load_config(arguments, find_more=build.find_unusable_names)
    if not config.memory.enabled:
        raise UsageError("memory.enabled=false: the plain run has nothing to plan")
    path = training.choose_run_path(config.run, f"{config_name}-plan")
    planning = _prepare(config)
    given = planning.choose() if config.memory.budget is not None else None
    rows = _trade_off(planning, given)
    print(_table(rows, planning), flush=True)
    if _MEASURE in flags:
        for row in progress_bar(rows, desc="measuring", unit="schedule"):
            _measure(planning, row)
        print(f"\n{_table(rows, planning)}")
    chosen = given or rows[-1].schedule
    with training.open_run_directory(path):
        write_text(path / "config.yaml", write_config(build.with_schedule(config, chosen)))
        write_text(path / "plan.json", json.dumps([_to_record(row) for row in rows], indent=2) + "\n")
        _draw(rows, planning, path / "plan.png")
        write_text(path / "plan.md", _table(rows, planning) + "\n")
    if given is not None:
        print(f"\nfor {format_bytes(planning.budget_bytes)}: {given}")
    by = "this plan" if given is not None else "the last of these schedules"
    print(f"plan.md, plan.json and plan.png are in {path}; config.yaml there trains by {by}")
    return 0


def _prepare(config: Config) -> build.Planning:
    """Build what the training command would, and measure it."""
    ids = build.choose_videos(config.data)
    model = build.build_model(config)
    build.check_image_size(model, config.data.image_size)
    videos = build.read_videos(config.data, ids)
    model.to(build.choose_device(config.train.device))
    sample = build.take_largest_batch(config, videos.clips(config.data.clip_length))
    return build.Planning(config, model, sample, build.build_optimiser(model, config))


def _trade_off(planning: build.Planning, given: Schedule | None) -> list[_Row]:
    """Schedules for budgets from the smallest feasible one to what the plain run takes, and the one given."""
    least = smallest_budget(planning.costs, planning.fixed)
    most = max(least, round(1.05 * predict_plain(planning.costs).peak_bytes))
    budgets = [round(least * (most / least) ** (i / (_NUM_BUDGETS - 1))) for i in range(_NUM_BUDGETS)]
    rows = [_Row(budget, solve(planning.costs, max(least, budget), planning.fixed)) for budget in budgets]
    if given is not None:
        rows.append(_Row(planning.budget_bytes, given, is_given=True))
    return sorted(rows, key=lambda row: row.budget_bytes)


def _measure(planning: build.Planning, row: _Row) -> None:
    """Run steps of a schedule: their median time, and the allocator's peak with what was there before."""
    model, sample = planning.model, planning.sample
    device = next(model.parameters()).device
    row.schedule.apply(model)

    def step() -> None:
        loss, _ = model(sample.frames, sample.targets)
        loss.backward()

    seconds = []
    for _ in range(_NUM_STEPS):
        model.zero_grad(set_to_none=True)
        seconds.append(time_step(step, device))
    model.zero_grad(set_to_none=True)
    row.measured_step_seconds = median(seconds)
    there = planning.resident_bytes + planning.costs.optimiser_bytes
    row.measured_peak_bytes = there + peak_allocated_bytes(step, device)
    model.zero_grad(set_to_none=True)


def _table(rows: Sequence[_Row], planning: build.Planning) -> str:
    is_measured = any(row.measured_peak_bytes is not None for row in rows)
    heads = ["budget", "predicted peak", *(["measured peak"] if is_measured else []), "predicted step"]
    heads += [*(["measured step"] if is_measured else []), "recomputed", "time / limit", "schedule"]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        schedule = row.schedule
        cells = [f"{format_bytes(row.budget_bytes)}{' (given)' if row.is_given else ''}"]
        cells.append(format_bytes(schedule.predicted_peak_bytes or 0))
        if row.measured_peak_bytes is not None:
            cells.append(format_bytes(row.measured_peak_bytes))
        cells.append(f"{schedule.predicted_step_seconds:.3g} s")
        if row.measured_step_seconds is not None:
            cells.append(f"{row.measured_step_seconds:.3g} s")
        cells += [f"{schedule.recompute_fraction:.0%}", f"{schedule.ratio_to_limit:.2f}", schedule.describe_choices()]
        lines.append(cells)
    plain = predict_plain(planning.costs)
    notes = [
        f"the plain run: {format_bytes(plain.peak_bytes)}, {plain.step_seconds:.3g} s a step (predicted)",
        "recomputed: of one forward. time / limit: the step's time over that of one which keeps as many whole chunks",
        "as the budget holds, the others replayed as fast as the plain run is; below 1 where cuts by depth do better.",
    ]
    return "\n".join(["| " + " | ".join(cells) + " |" for cells in lines] + ["", *notes])


def _to_record(row: _Row) -> dict[str, Any]:
    return {
        "budget_bytes": row.budget_bytes,
        "is_given": row.is_given,
        "measured_peak_bytes": row.measured_peak_bytes,
        "measured_step_seconds": row.measured_step_seconds,
        "schedule": row.schedule.to_dict(),
    }


def _draw(rows: Sequence[_Row], planning: build.Planning, path: Any) -> None:
    plain = predict_plain(planning.costs)
    points = [
        PlanPoint(
            peak_bytes=row.schedule.predicted_peak_bytes or 0,
            step_seconds=row.schedule.predicted_step_seconds or 0.0,
            limit_seconds=(row.schedule.predicted_step_seconds or 0.0) / (row.schedule.ratio_to_limit or 1.0),
            measured_peak_bytes=row.measured_peak_bytes,
            measured_step_seconds=row.measured_step_seconds,
        )
        for row in rows
    ]
    given = [i for i, row in enumerate(rows) if row.is_given]
    plot_trade_off(
        points,
        path,
        plain_peak_bytes=plain.peak_bytes,
        plain_step_seconds=plain.step_seconds,
        chosen=given[0] if given else None,
    )


PLAN = Command(
    "plan",
    _plan,
    "find the fastest schedule within memory.budget, and show time against memory for other budgets",
    {_MEASURE: "run each schedule, and show what was measured beside what was predicted"},
)
