"""Curves over the epochs, as SVG that takes its colours from the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from seqckpt.report.records import Row

__all__ = ["draw_curves"]

_WIDTH, _HEIGHT = 460, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 12, 42
_MARKERS = ("circle", "square", "diamond")


def draw_curves(rows: Sequence[Row]) -> str:
    """Draw the fields named like "loss" and like "accuracy" over the field epoch; "" where there is nothing to draw."""
    return "".join(_draw_panel(kind, series) for kind in ("loss", "accuracy") if (series := _find_series(rows, kind)))


def _find_series(rows: Sequence[Row], kind: str) -> dict[str, list[tuple[float, float]]]:
    """Collect (epoch, value) of every field whose name holds `kind`, where both are finite numbers."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        epoch = _number(row.get("epoch"))
        for name, text in row.items():
            value = _number(text)
            if kind in str(name) and epoch is not None and value is not None:
                series.setdefault(str(name), []).append((epoch, value))
    return series


def _number(text: Any) -> float | None:
    try:
        number = float(text)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _draw_panel(kind: str, series: dict[str, list[tuple[float, float]]]) -> str:
    points = [point for line in series.values() for point in line]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    top = 1.0 if kind == "accuracy" else max(max(y for _, y in points), 1e-9)
    low = min(0.0, min(y for _, y in points))
    ticks = _choose_ticks(low, top)
    top = max(top, ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (last - first) if last > first else 0.5
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - (y - low) / (top - low) * (_HEIGHT - _TOP - _BOTTOM),
        )

    grid = "".join(_draw_tick(place(first, tick)[1], tick, kind) for tick in ticks)
    epochs = _choose_epochs(first, last)
    below = "".join(
        f'<text x="{place(epoch, 0)[0]:.1f}" y="{_HEIGHT - 24}" class="tick middle">{epoch:g}</text>'
        for epoch in epochs
    )
    lines = "".join(
        _draw_line([place(*point) for point in line], number) for number, line in enumerate(series.values())
    )
    described = "; ".join(
        f"{name} from {line[0][1]:.3g} in epoch {line[0][0]:g} to {line[-1][1]:.3g} in epoch {line[-1][0]:g}"
        for name, line in series.items()
    )
    legend = "".join(_write_key(name, number) for number, name in enumerate(series))
    return (
        f'<figure class="curve"><figcaption>{kind.capitalize()}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(f"{kind}: {described}")}">'
        f'{grid}{below}<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 5}" class="tick end">epoch</text>{lines}</svg>'
        f'<ul class="keys">{legend}</ul></figure>'
    )


def _write_key(name: str, number: int) -> str:
    sample = _draw_line([(1, 5), (14, 5), (27, 5)], number, only=1)
    shown = escape(name.replace("_", " "))
    return f'<li><svg class="key" viewBox="0 0 28 10" aria-hidden="true">{sample}</svg>{shown}</li>'


def _draw_tick(y: float, value: float, kind: str) -> str:
    text = f"{value:.0%}" if kind == "accuracy" else f"{value:g}"
    return (
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" class="tick end">{text}</text>'
    )


def _draw_line(points: Sequence[tuple[float, float]], number: int, *, only: int | None = None) -> str:
    """Draw a line with its markers, on every point or on that one only; no markers where they would touch."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    marked = points if len(points) <= 40 else ()
    marks = "".join(_draw_marker(*point, number) for point in (points[only : only + 1] if only is not None else marked))
    return f'<g class="line line-{number % 3}"><polyline points="{path}"/>{marks}</g>'


def _draw_marker(x: float, y: float, number: int) -> str:
    kind = _MARKERS[number % 3]
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>'
    turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if kind == "diamond" else ""
    return f'<rect x="{x - 2.9:.1f}" y="{y - 2.9:.1f}" width="5.8" height="5.8"{turn}/>'


def _choose_ticks(low: float, top: float) -> list[float]:
    """Choose round numbers from below `low` to `top` or just above it."""
    rough = (top - low) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    start = math.floor(low / step + 1e-9)
    return [round(number * step, 12) for number in range(start, math.ceil(top / step - 1e-9) + 1)]


def _choose_epochs(first: float, last: float) -> list[float]:
    step = max(1, math.ceil((last - first) / 7))
    return [first + step * number for number in range(int((last - first) // step) + 1)]
