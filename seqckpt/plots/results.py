"""Pictures of results: phase ribbons, and training curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator, PercentFormatter
from numpy.typing import ArrayLike, NDArray

from seqckpt.errors import UsageError
from seqckpt.plots.style import INK, MARKERS, PALETTE, draw_grid, save, tidy, write_legend
from seqckpt.units import format_seconds

__all__ = ["Ribbon", "phase_style", "plot_curves", "plot_ribbons"]

_HATCHES = ("", "////", "....", "xxxx")  # one for each time round the palette
_UNLABELLED = "#DDDDDD"
_MOST_INCHES = 200.0
_TICK_STEPS_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 36000)


@dataclass(frozen=True)
class Ribbon:
    """One video: true and predicted phase of each frame (integers; below 0 is unlabelled) and its time in seconds.

    `truth` is None where it is not known: a new video.
    """

    video_id: str
    truth: ArrayLike | None
    prediction: ArrayLike
    seconds: ArrayLike


def plot_ribbons(ribbons: Sequence[Ribbon | Mapping[str, Any]], phase_names: Sequence[str], path: str | Path) -> None:
    """Draw the phases of videos as ribbons over time: one row a video, truth (where it is known) above prediction.

    A mapping with the fields of `Ribbon` does as well; a legend names the phases. Frames below 0 are grey. Raises
    UsageError where a video's arrays differ in length, or hold a phase without a name.
    """
    rows = [row if isinstance(row, Ribbon) else Ribbon(**row) for row in ribbons]
    if not rows:
        raise UsageError("no ribbon to draw: expected at least one video")
    row_inches = min(max(0.26, 0.62 - 0.012 * len(rows)), _MOST_INCHES / len(rows))
    figure = Figure(figsize=(11, 1.7 + row_inches * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    has_unlabelled = False
    end_seconds = 0.0
    for index, row in enumerate(rows):
        truth, prediction, edges = _check_ribbon(row, len(phase_names))
        has_unlabelled |= any(bool((phases < 0).any()) for phases in (truth, prediction) if phases is not None)
        end_seconds = max(end_seconds, float(edges[-1]))
        if truth is None:
            _draw_runs(axes, prediction, edges, bottom=index - 0.40, height=0.77)
        else:
            _draw_runs(axes, truth, edges, bottom=index - 0.40, height=0.42)
            _draw_runs(axes, prediction, edges, bottom=index + 0.05, height=0.32)
    axes.set_xlim(0, end_seconds)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    size = min(10.0, 0.45 * 72 * row_inches)
    axes.set_yticks(range(len(rows)), [row.video_id for row in rows], fontsize=size, parse_math=False)
    has_truth = any(row.truth is not None for row in rows)
    title = "each row: truth above, prediction below" if has_truth else "predicted phases"
    axes.set_title(title, loc="left", fontsize=9, color=INK)
    _time_axis(axes, end_seconds)
    tidy(axes, keep=("bottom",))
    _phase_legend(figure, phase_names, has_unlabelled)
    save(figure, Path(path))


def plot_curves(records: Sequence[Mapping[str, Any]], path: str | Path, *, x: str = "epoch") -> None:
    """Draw loss and accuracy over training, side by side, from rows of a log such as metrics.csv.

    Every field whose name holds "loss" becomes a line on the left, every one with "accuracy" a line on the right, over
    the field `x`. Numbers may be text; fields that are absent, empty, None or not finite are left out. Raises
    UsageError where there is nothing to draw.
    """
    panels = {kind: series for kind in ("loss", "accuracy") if (series := _series(records, kind, x))}
    if not panels:
        raise UsageError(f"no curve to draw: expected records with {x!r} and fields named like 'loss' or 'accuracy'")
    figure = Figure(figsize=(5.5 * len(panels), 4), layout="constrained")
    for position, (kind, series) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), position)
        for index, (name, points) in enumerate(series.items()):
            few = len(points) <= 40
            marker = MARKERS[index % len(MARKERS)] if few else ""
            color = PALETTE[(0, 4, 2, 6, 7)[index % 5]]
            axes.plot(*zip(*points, strict=True), label=name, color=color, marker=marker, markersize=4, linewidth=1.6)
        axes.set_xlabel(x)
        axes.set_title(kind, loc="left", color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if kind == "accuracy":
            axes.set_ylim(0, 1.02)
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        draw_grid(axes)
        axes.legend(frameon=False, fontsize=9)
    save(figure, Path(path))


def phase_style(phase: int) -> dict[str, str]:
    """Return `color` and `hatch` of a phase: colours repeat after the palette's end, then with another hatching."""
    if phase < 0:
        return {"color": _UNLABELLED, "hatch": ""}
    return {"color": PALETTE[phase % len(PALETTE)], "hatch": _HATCHES[phase // len(PALETTE) % len(_HATCHES)]}


def _check_ribbon(row: Ribbon, num_phases: int) -> tuple[NDArray[Any] | None, NDArray[Any], NDArray[Any]]:
    """Return truth (None: not known), prediction, and the N + 1 times at which the N frames begin and end."""
    prediction, seconds = np.asarray(row.prediction), np.asarray(row.seconds, dtype=float)
    truth = None if row.truth is None else np.asarray(row.truth)
    num_true = len(prediction) if truth is None else len(truth)
    if not num_true == len(prediction) == len(seconds) or num_true == 0:
        counted = "" if truth is None else f"{num_true} true phases, "
        raise UsageError(
            f"ribbon {row.video_id!r} has {counted}{len(prediction)} predicted ones and {len(seconds)} times: "
            "expected as many of each, and at least one"
        )
    highest = max(phases.max() for phases in (truth, prediction) if phases is not None)
    if highest >= num_phases:
        raise UsageError(f"ribbon {row.video_id!r} holds phase {highest}, but only {num_phases} phase names were given")
    step = float(np.median(np.diff(seconds))) if len(seconds) > 1 else 1.0
    return truth, prediction, np.append(seconds, seconds[-1] + step)


def _draw_runs(axes: Axes, phases: NDArray[Any], edges: NDArray[Any], *, bottom: float, height: float) -> None:
    """Draw each stretch of one phase as one bar."""
    starts = np.flatnonzero(np.diff(phases, prepend=phases[0] - 1))
    stops = np.append(starts[1:], len(phases))
    for phase in np.unique(phases):
        spans = [
            (edges[start], edges[stop] - edges[start])
            for start, stop in zip(starts, stops, strict=True)
            if phases[start] == phase
        ]
        style = phase_style(int(phase))
        face, hatch = style["color"], style["hatch"]
        axes.broken_barh(
            spans, (bottom, height), facecolor=face, hatch=hatch, edgecolor="white" if hatch else face, linewidth=0
        )


def _phase_legend(figure: Figure, phase_names: Sequence[str], has_unlabelled: bool) -> None:
    phases = [*range(len(phase_names)), *([-1] if has_unlabelled else [])]
    handles = []
    for phase in phases:
        style = phase_style(phase)
        handles.append(Patch(facecolor=style["color"], hatch=style["hatch"], edgecolor="white", linewidth=0))
    columns = min(4, len(handles))
    write_legend(
        figure, handles, [*phase_names, "(no label)"][: len(handles)], loc="outside upper left", columns=columns
    )


def _time_axis(axes: Axes, end_seconds: float) -> None:
    step = next((step for step in _TICK_STEPS_SECONDS if end_seconds / step <= 12), _TICK_STEPS_SECONDS[-1])
    axes.xaxis.set_major_locator(MultipleLocator(step))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: format_seconds(seconds)))
    axes.set_xlabel("time (h:mm:ss)" if end_seconds >= 3600 else "time (m:ss)")


def _series(records: Sequence[Mapping[str, Any]], kind: str, x: str) -> dict[str, list[tuple[float, float]]]:
    """Collect (x, y) of every field whose name holds `kind`."""
    series: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        at = _number(record.get(x))
        for name, value in record.items():
            number = _number(value)
            if kind in name and at is not None and number is not None:
                series.setdefault(name, []).append((at, number))
    return series


def _number(value: Any) -> float | None:
    if value is None or value == "":
        return None
    number = float(value)
    return number if math.isfinite(number) else None
