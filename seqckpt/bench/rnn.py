"""Case rnn: SegmentedRNN against nn.LSTM over long sequences: bytes and seconds over T, one and two levels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from seqckpt.bench.case import Case, Settings
from seqckpt.bench.hardware import default_device, free_memory
from seqckpt.bench.report import Report
from seqckpt.bench.subject import Subject
from seqckpt.bench.turns import Figures, measure_side_by_side
from seqckpt.core import SegmentedRNN
from seqckpt.plots import plot_series
from seqckpt.progress import progress_bar
from seqckpt.units import format_bytes

__all__ = ["RNN", "build_rnn_subject"]


def build_rnn_subject(*, num_steps: int, hidden_size: int, levels: tuple[int, ...]) -> Subject:
    """nn.LSTM (no levels), or SegmentedRNN with one or more levels of segments, on one sequence that needs no grad."""
    torch.manual_seed(0)
    lstm = nn.LSTM(hidden_size, hidden_size, batch_first=True)
    rnn = (SegmentedRNN(lstm, list(levels)) if levels else lstm).to(default_device())
    x = torch.randn(1, num_steps, hidden_size, device=default_device())

    def step() -> None:
        hidden, _ = rnn(x)
        hidden.sum().backward()  # its gradient is one number, expanded

    return Subject(step, dict(lstm.named_parameters()))


def run_rnn(settings: Settings, report: Report) -> None:
    """Every length: nn.LSTM; segments of about the square root of T; those again, within longer ones."""
    hidden_size, lengths = settings["hidden_size"], sorted(settings["lengths"])
    heads = ["T", "way", "peak of a step", "less", "median step", "of nn.LSTM"]
    rows = []
    by_memory: dict[str, list[tuple[float, float]]] = {}
    by_time: dict[str, list[tuple[float, float]]] = {}
    with progress_bar(total=3 * len(lengths) * (settings["steps"] + 1), desc="rnn", unit="step") as bar:
        for num_steps in lengths:
            ways = _ways(num_steps, hidden_size)
            limit = free_memory(default_device())
            figures = measure_side_by_side(
                ways,
                build_rnn_subject,
                num_steps=settings["steps"],
                limit_bytes=limit,
                tick=lambda name: bar.update(),
            )
            plain = figures["nn.LSTM"]
            for figure, kind in zip(figures.values(), ("nn.LSTM", "one level", "two levels"), strict=True):
                report.records.append(figure.to_record(num_steps=num_steps, kind=kind))
                rows.append([f"{num_steps:,}", *_row(figure, plain)])
                if figure.problem is None and figure.peak_bytes and figure.step_seconds:
                    by_memory.setdefault(kind, []).append((num_steps, figure.peak_bytes))
                    by_time.setdefault(kind, []).append((num_steps, figure.step_seconds))
    title = f"LSTM of {hidden_size}, one sequence of T steps"
    report.add_table(title, heads, rows)
    pictures: list[tuple[str, dict[str, list[tuple[float, float]]], str, Any]] = [
        ("peak", by_memory, "peak memory of a step", "bytes"),
        ("time", by_time, "seconds of a step", "plain"),
    ]
    for kind, series, ylabel, unit in pictures if by_memory else ():
        path = report.add_picture(kind, f"{ylabel} over T")
        plot_series(series, path, title=title, xlabel="time steps (T)", ylabel=ylabel, unit=unit)


def _ways(num_steps: int, hidden_size: int) -> dict[str, dict[str, Any]]:
    inner = max(1, round(math.sqrt(num_steps)))
    outer = max(inner, round(math.sqrt(num_steps * inner)))
    common = {"num_steps": num_steps, "hidden_size": hidden_size}
    return {
        "nn.LSTM": {"levels": (), **common},
        f"SegmentedRNN({inner})": {"levels": (inner,), **common},
        f"SegmentedRNN([{outer}, {inner}])": {"levels": (outer, inner), **common},
    }


def _row(figure: Figures, plain: Figures) -> list[str]:
    peak, seconds = figure.peak_bytes, figure.step_seconds
    if figure.problem is not None or peak is None or seconds is None:
        return [figure.name, figure.problem or "", "", "", ""]
    less = f"{plain.peak_bytes / peak:.1f}x" if plain.peak_bytes else ""
    ratio = f"{seconds / plain.step_seconds:.2f}x" if plain.step_seconds else ""
    return [figure.name, format_bytes(peak), less, f"{seconds:.3g} s", ratio]


RNN = Case(
    "rnn",
    "SegmentedRNN against nn.LSTM for T up to 100,000: bytes and seconds, one and two levels",
    run_rnn,
    settings={"lengths": (1000, 10_000, 100_000), "hidden_size": 256, "steps": 5},
    quick={"lengths": (300, 3000), "hidden_size": 64, "steps": 1},
    least={"lengths": 16, "steps": 0},
)
