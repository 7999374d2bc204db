"""Confusion matrices as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from seqckpt.errors import UsageError
from seqckpt.plots.style import INK, save, tidy

__all__ = ["plot_confusion"]


def plot_confusion(confusion: ArrayLike, phase_names: Sequence[str], path: str | Path) -> None:
    """Draw counts of frames (K, K), row = true phase, column = predicted phase, as shares of each row, in percent.

    A phase that has no frame has an empty row. Raises UsageError where the matrix does not fit the names.
    """
    counts = np.asarray(confusion)
    num_phases = len(phase_names)
    if counts.shape != (num_phases, num_phases):
        raise UsageError(f"a confusion matrix of shape {counts.shape} came with {num_phases} phase names")
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    side = max(4.0, 0.55 * num_phases)
    figure = Figure(figsize=(side + 3.2, side + 1.4), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), share in np.ndenumerate(shares):
        if totals[row]:
            shade = "white" if share > 0.6 else INK
            axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", color=shade, fontsize=9)
    axes.set_xticks(range(num_phases), list(phase_names), rotation=40, ha="right", fontsize=9, parse_math=False)
    axes.set_yticks(range(num_phases), list(phase_names), fontsize=9, parse_math=False)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title("frames of each true phase, in %", loc="left", fontsize=10, color=INK)
    tidy(axes, keep=())
    save(figure, Path(path))
