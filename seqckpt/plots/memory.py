"""Pictures of memory: peaks over sequence length, and traces of single steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from seqckpt.errors import UsageError
from seqckpt.plots.style import FAINT, INK, MARKERS, PALETTE, draw_grid, save, write_bytes, write_legend
from seqckpt.units import format_bytes

__all__ = ["MemoryPoint", "Trace", "compare_traces", "plot_peak_memory", "plot_trace"]

_MOST_NAMES = 44
_SHARES = (("gradient_bytes", "gradients", "#882255"), ("activation_bytes", "activations", "#56B4E9"))
_REST = ("temporaries", "#DDCC77")


class Trace(Protocol):
    """What is drawn of a memory trace: `timeline`, moments in order, each with `module`, `phase` ("forward",
    "backward", "other"), `is_replay`, `start_seconds`, `peak_bytes`, `activation_bytes` and `gradient_bytes`."""

    @property
    def timeline(self) -> Sequence[Any]: ...


@dataclass(frozen=True)
class MemoryPoint:
    """Peak memory in bytes of one step over `num_frames` frames; points of one label make one line."""

    label: str
    num_frames: int
    peak_bytes: float


def plot_peak_memory(
    points: Sequence[MemoryPoint | Mapping[str, Any]],
    path: str | Path,
    *,
    title: str = "peak memory of a training step",
) -> None:
    """Draw peak memory over the number of frames, one line per label, on logarithmic axes when lengths span a factor 4.

    A mapping with the fields of `MemoryPoint` does as well.
    """
    entries = [point if isinstance(point, MemoryPoint) else MemoryPoint(**point) for point in points]
    if not entries or min(entry.num_frames for entry in entries) < 1 or min(entry.peak_bytes for entry in entries) <= 0:
        raise UsageError("no memory to draw: expected points with num_frames of at least 1 and peak_bytes above 0")
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for index, label in enumerate(dict.fromkeys(entry.label for entry in entries)):
        line = sorted((entry.num_frames, entry.peak_bytes) for entry in entries if entry.label == label)
        color, marker = PALETTE[(4, 0, 2, 6, 1, 5, 7)[index % 7]], MARKERS[index % len(MARKERS)]
        axes.plot(*zip(*line, strict=True), label=label, color=color, marker=marker, linewidth=1.8)
    lengths = sorted({entry.num_frames for entry in entries})
    logarithmic = lengths[-1] >= 4 * lengths[0]
    _memory_axes(axes, lengths, [entry.peak_bytes for entry in entries], logarithmic=logarithmic)
    axes.set_xlabel("frames in one training step (T)")
    axes.set_title(title, loc="left", color=INK)
    draw_grid(axes)
    axes.legend(frameon=False)
    save(figure, Path(path))


def plot_trace(trace: Trace, path: str | Path) -> None:
    """Draw memory over the events of one step, forward then backward, with its parts, module names and the peak.

    An event is the stretch up to the next begin or end of a module's run; its height is the most that was allocated in
    it, above the step's start. Replays are hatched. Raises UsageError for a trace without events.
    """
    moments = _check(trace, "the trace")
    figure = Figure(figsize=(13, 6), layout="constrained")
    axes = figure.add_subplot()
    edges = np.arange(len(moments) + 1)
    below = np.zeros(len(moments))
    for attribute, _, color in _SHARES:
        above = below + [max(getattr(moment, attribute), 0) for moment in moments]
        axes.stairs(above, edges, baseline=below, fill=True, color=color, linewidth=0)
        below = above
    peaks = np.array([moment.peak_bytes for moment in moments])
    axes.stairs(np.maximum(peaks, below), edges, baseline=below, fill=True, color=_REST[1], linewidth=0)
    axes.stairs(peaks, edges, baseline=None, color=INK, linewidth=0.9 if len(moments) < 500 else 0.4)
    _shade_phases(axes, moments)
    _name_modules(axes, moments)
    at = int(peaks.argmax())
    _mark_peak(axes, at + 0.5, moments[at], left=at > len(moments) / 2)
    axes.set_xlim(0, len(moments))
    axes.set_ylim(0, 1.22 * max(peaks.max(), 1))  # room for the peak's text, and above it for the phases'
    write_bytes(axes, peaks.max())
    axes.set_title("memory over the events of one training step", loc="left", color=INK)
    draw_grid(axes)
    axes.grid(False, axis="x")
    handles = [Patch(color=color, label=name) for _, name, color in reversed(_SHARES)]
    handles.insert(0, Patch(color=_REST[1], label=_REST[0]))
    if any(moment.is_replay for moment in moments):
        handles.append(Patch(facecolor="white", edgecolor=INK, hatch="////", linewidth=0, label="replay"))
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=9)
    save(figure, Path(path))


def compare_traces(traces: Mapping[str, Trace], path: str | Path) -> None:
    """Draw memory over the time of several steps on one picture, their peaks marked and written in the legend.

    Raises UsageError for no trace, and for one without events.
    """
    if not traces:
        raise UsageError("no trace to draw: expected at least one, as in {'plain': trace}")
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.add_subplot()
    highest = 1.0
    names, handles = [], []
    for index, (label, trace) in enumerate(traces.items()):
        moments = _check(trace, f"trace {label!r}")
        peaks = [moment.peak_bytes for moment in moments]
        seconds = [moment.start_seconds for moment in moments]
        color = PALETTE[(0, 4, 2, 6, 7, 1, 5)[index % 7]]
        at = peaks.index(max(peaks))
        highest = max(highest, peaks[at])
        names.append(f"{label}: peak {format_bytes(peaks[at])} in {_describe(moments[at])}")
        axes.plot(seconds, peaks, drawstyle="steps-post", color=color, linewidth=1.3)
        marker = MARKERS[index % len(MARKERS)]
        axes.plot(
            seconds[at], peaks[at], marker=marker, color=color, markersize=8, markeredgecolor="white", linestyle="none"
        )
        handles += axes.plot([], [], color=color, marker=marker)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.08 * highest)
    write_bytes(axes, highest)
    axes.set_xlabel("seconds since the step began")
    axes.set_title("memory over one training step", loc="left", color=INK)
    draw_grid(axes)
    write_legend(figure, handles, names, loc="outside lower left")
    save(figure, Path(path))


def _memory_axes(axes: Axes, lengths: list[int], peaks: list[float], *, logarithmic: bool) -> None:
    if logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(lengths))
        axes.xaxis.set_minor_locator(NullLocator())
        low, high = math.floor(math.log2(min(peaks))), math.ceil(math.log2(max(peaks)))
        step = max(1, math.ceil((high - low) / 8))
        axes.set_ylim(2.0 ** (low - 0.3), 2.0 ** (high + 0.3))
        axes.yaxis.set_major_locator(FixedLocator([2.0**power for power in range(low, high + 1, step)]))
    else:
        axes.set_ylim(0, 1.08 * max(peaks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda num_frames, _: f"{num_frames:,.0f}"))
    write_bytes(axes, None if logarithmic else max(peaks))


def _check(trace: Trace, what: str) -> Sequence[Any]:
    if not trace.timeline:
        raise UsageError(f"{what} has no events to draw: expected a trace as trace_memory returns it")
    return trace.timeline


def _describe(moment: Any) -> str:
    if moment.phase == "other":
        return "code outside of the model"
    return f"{moment.module or 'the model'} ({'replay, ' if moment.is_replay else ''}{moment.phase})"


def _mark_peak(axes: Axes, x: float, moment: Any, *, left: bool) -> None:
    text = f"peak {format_bytes(moment.peak_bytes)}\n{_describe(moment)}"
    axes.plot(x, moment.peak_bytes, marker="o", color=PALETTE[4], markersize=7, markeredgecolor="white", zorder=5)
    axes.annotate(
        text,
        (x, moment.peak_bytes),
        xytext=(-12 if left else 12, 4),
        textcoords="offset points",
        ha="right" if left else "left",
        va="bottom",
        fontsize=9,
        color=INK,
        parse_math=False,
    )


def _shade_phases(axes: Axes, moments: Sequence[Any]) -> None:
    """Backward is grey behind, replays are hatched."""
    position = 0
    for (phase, is_replay), stretch in groupby(moments, key=lambda moment: (moment.phase, moment.is_replay)):
        length = len(list(stretch))
        if is_replay and phase == "forward":
            axes.axvspan(position, position + length, facecolor="none", edgecolor=FAINT, hatch="////", linewidth=0)
        position += length
    first = next((k for k, moment in enumerate(moments) if moment.phase == "backward"), None)
    if first is not None:
        axes.axvspan(first, len(moments), color="#F2F2F2", linewidth=0, zorder=-2)
        for x, name in ((0, "forward"), (first, "backward")):
            axes.text(x, 0.985, f" {name}", transform=axes.get_xaxis_transform(), va="top", color=INK, fontsize=10)


def _name_modules(axes: Axes, moments: Sequence[Any]) -> None:
    """Write names below: the innermost modules where there is room, otherwise the modules that they belong to."""
    depth = max((moment.module.count(".") + 1 for moment in moments), default=1)
    groups = _group(moments, depth)
    while depth > 1 and len(groups) > _MOST_NAMES:
        depth -= 1
        groups = _group(moments, depth)
    spacing = len(moments) / (2 * _MOST_NAMES)
    ticks: list[tuple[float, str]] = []
    for start, stop, name in sorted(groups, key=lambda group: group[0] - group[1]):  # the widest first
        middle = (start + stop) / 2
        if all(abs(middle - x) >= spacing for x, _ in ticks):
            ticks.append((middle, name))
    size = 9 if len(ticks) <= 12 else 7
    axes.set_xticks([x for x, _ in ticks], [name for _, name in ticks], rotation=90, fontsize=size, parse_math=False)
    for start, stop, _ in groups if len(groups) <= _MOST_NAMES else ():
        if stop - start >= spacing / 2:
            axes.axvline(start, color=FAINT, linewidth=0.5, zorder=-1)
    axes.tick_params(axis="x", length=0)


def _group(moments: Sequence[Any], depth: int) -> list[tuple[int, int, str]]:
    """Stretches of one module, looked at no deeper than `depth`: start, stop, name.

    What a module does around the modules inside it has no name of its own.
    """
    names = [".".join(moment.module.split(".")[:depth]) for moment in moments]
    outer = {name.rsplit(".", k)[0] for name in set(names) for k in range(1, name.count(".") + 1)} | {""}
    turn = next((k for k, moment in enumerate(moments) if moment.phase == "backward"), len(moments))
    groups: list[tuple[int, int, str]] = []
    for position, name in enumerate(names):
        if name in outer:
            continue
        start, stop, before = groups[-1] if groups else (0, 0, "")
        if name == before and (stop > turn or position < turn):
            groups[-1] = start, position + 1, name
        else:
            groups.append((position, position + 1, name))
    return groups
