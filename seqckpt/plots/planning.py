"""Pictures of plans: the peak memory of a step against its time, over budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from seqckpt.errors import UsageError
from seqckpt.plots.style import INK, PALETTE, draw_grid, save
from seqckpt.units import format_bytes

__all__ = ["PlanPoint", "plot_trade_off"]


@dataclass(frozen=True)
class PlanPoint:
    """One planned schedule: predicted peak in bytes and seconds of a step, the limit's seconds, what was measured."""

    peak_bytes: float
    step_seconds: float
    limit_seconds: float
    measured_peak_bytes: float | None = None
    measured_step_seconds: float | None = None


def plot_trade_off(
    points: Sequence[PlanPoint | Mapping[str, Any]],
    path: str | Path,
    *,
    plain_peak_bytes: float,
    plain_step_seconds: float,
    chosen: int | None = None,
) -> None:
    """Draw the time of a step over its peak memory, one point a plan, measured points beside them where there are any.

    The plain run is a cross of lines, the limit of keeping whole chunks a curve; `chosen` is the number of the point to
    be marked. Raises UsageError without points.
    """
    entries = [point if isinstance(point, PlanPoint) else PlanPoint(**point) for point in points]
    if not entries:
        raise UsageError("no plans to draw: expected at least one point")
    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    axes = figure.add_subplot()
    by_peak = sorted(entries, key=lambda entry: entry.peak_bytes)
    peaks = [entry.peak_bytes for entry in by_peak]
    axes.axhline(plain_step_seconds, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.axvline(plain_peak_bytes, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), label="plain run")
    limits = [entry.limit_seconds for entry in by_peak]
    axes.plot(peaks, limits, color=PALETTE[2], linewidth=1.2, linestyle=":", label="limit of keeping whole chunks")
    seconds = [entry.step_seconds for entry in by_peak]
    axes.plot(peaks, seconds, color=PALETTE[0], marker="o", linewidth=1.6, label="planned (predicted)")
    measured = [
        (entry.measured_peak_bytes, entry.measured_step_seconds)
        for entry in by_peak
        if entry.measured_peak_bytes is not None and entry.measured_step_seconds is not None
    ]
    if measured:
        xs, ys = zip(*measured, strict=True)
        axes.plot(xs, ys, color=PALETTE[4], marker="x", markersize=8, linewidth=0, label="planned (measured)")
    if chosen is not None:
        point = entries[chosen]
        at = [point.peak_bytes], [point.step_seconds]
        axes.scatter(*at, s=190, facecolors="none", edgecolors=INK, zorder=3, label="the budget given")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=2, subs=(1.0,), numticks=9))
    axes.xaxis.set_minor_formatter(NullFormatter())
    written = FuncFormatter(lambda num_bytes, _: format_bytes(num_bytes).replace(".0 ", " ").replace(".00 ", " "))
    axes.xaxis.set_major_formatter(written)
    highest = max([*seconds, *limits, plain_step_seconds, *(entry.measured_step_seconds or 0 for entry in entries)])
    if highest > 5 * min(seconds):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, 1.1 * highest)
    axes.set_xlabel("peak memory of a step")
    axes.set_ylabel("seconds")
    axes.set_title("time of a training step over the memory that it may take", loc="left", color=INK)
    draw_grid(axes)
    figure.legend(frameon=False, loc="outside lower left", ncols=3)  # inside it would cover points
    save(figure, Path(path))
