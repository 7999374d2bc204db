"""Pictures of comparisons: ways to do the same work, by memory and time, or one figure of each over a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from seqckpt.errors import UsageError
from seqckpt.plots.style import INK, MARKERS, PALETTE, draw_grid, save, write_bytes, write_legend
from seqckpt.units import format_bytes

__all__ = ["FrontPoint", "plot_front", "plot_series"]

_BYTES = FuncFormatter(lambda num_bytes, _: format_bytes(num_bytes).replace(".0 ", " ").replace(".00 ", " "))


@dataclass(frozen=True)
class FrontPoint:
    """One way: the peak memory of a step in bytes, and its seconds; `is_ours` is drawn large, in one
    colour; the best of those are joined by a line.
    """

    label: str
    peak_bytes: float
    seconds: float
    is_ours: bool = False
    is_exact: bool = True


def plot_front(points: Sequence[FrontPoint | Mapping[str, Any]], path: str | Path, *, title: str) -> None:
    """Draw memory on x and time on y, one point a way: nearer to the lower left corner is better.

    Ways whose gradients are not exact are hollow. Raises UsageError without points.
    """
    entries = [point if isinstance(point, FrontPoint) else FrontPoint(**point) for point in points]
    if not entries:
        raise UsageError("no ways to draw: expected at least one point")
    figure = Figure(figsize=(9, 5.8), layout="constrained")
    axes = figure.add_subplot()
    front: list[tuple[float, float]] = []
    for point in sorted((entry.peak_bytes, entry.seconds) for entry in entries if entry.is_ours):
        if not front or point[1] < front[-1][1]:  # no other of ours takes less of both
            front.append(point)
    if len(front) > 1:
        axes.plot(*zip(*front, strict=True), color=PALETTE[0], linewidth=1.2, zorder=1)
    handles, names = [], []
    number = {True: 0, False: 0}
    for entry in entries:
        index = number[entry.is_ours]
        color = PALETTE[0] if entry.is_ours else PALETTE[(4, 2, 6, 1, 7, 5, 8, 10, 11, 12, 13)[index % 11]]
        marker = MARKERS[index % len(MARKERS)]
        number[entry.is_ours] += 1
        face = color if entry.is_exact else "none"
        size = 90 if entry.is_ours else 60
        at = [entry.peak_bytes], [entry.seconds]
        handles.append(axes.scatter(*at, s=size, color=color, facecolors=face, marker=marker, zorder=2))
        names.append(entry.label + ("" if entry.is_exact else " (gradients not exact)"))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=2, subs=(1.0,), numticks=9))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(_BYTES)
    axes.set_ylim(0, 1.1 * max(entry.seconds for entry in entries))
    axes.set_xlabel("peak memory of a step")
    axes.set_ylabel("seconds of a step")
    axes.set_title(title, loc="left", color=INK)
    draw_grid(axes)
    write_legend(figure, handles, names, loc="outside lower left", columns=2)
    save(figure, Path(path))


def plot_series(
    series: Mapping[str, Sequence[tuple[float, float]]],
    path: str | Path,
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    unit: Literal["bytes", "plain"] = "plain",
) -> None:
    """Draw one line of (x, y) a name, on logarithmic axes. Raises UsageError without points."""
    lines = {name: sorted(points) for name, points in series.items() if points}
    if not lines:
        raise UsageError("no lines to draw: expected at least one point")
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    handles = []
    for index, points in enumerate(lines.values()):
        color, marker = PALETTE[(4, 0, 2, 6, 1, 5, 7)[index % 7]], MARKERS[index % len(MARKERS)]
        handles += axes.plot(*zip(*points, strict=True), color=color, marker=marker, linewidth=1.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())
    if unit == "bytes":
        axes.yaxis.set_major_locator(LogLocator(base=2, subs=(1.0,), numticks=9))
        write_bytes(axes)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title, loc="left", color=INK)
    draw_grid(axes)
    write_legend(figure, handles, list(lines), loc="outside lower left", columns=2)
    save(figure, Path(path))
