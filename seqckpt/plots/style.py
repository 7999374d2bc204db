"""How pictures look and are written: colours, axes, and files that appear whole.

Figures are drawn without pyplot: no display is needed, and no global state is read or left behind. The suffix of the
path names the format (png, svg, pdf).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from seqckpt.atomic import new_file
from seqckpt.units import format_bytes

__all__ = ["FAINT", "INK", "MARKERS", "PALETTE", "draw_grid", "save", "tidy", "write_bytes", "write_legend"]

# Okabe and Ito's colours, safe for the common kinds of colour blindness, ordered so that neighbours differ in
# brightness too; then those of Paul Tol's "muted" scheme that stay apart from them.
PALETTE = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#F0E442",
    "#D55E00",
    "#56B4E9",
    "#CC79A7",
    "#000000",
    "#332288",
    "#DDCC77",
    "#882255",
    "#44AA99",
    "#999933",
    "#AA4499",
)
INK, FAINT = "#333333", "#D0D0D0"
MARKERS = "osD^vP*X"
_DOTS_PER_INCH = 150


def write_bytes(axes: Axes, highest: float | None = None) -> None:
    """Write bytes at the ticks of the y-axis; with `highest`, in round numbers of binary units from 0 to it."""
    if highest is not None:
        axes.yaxis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(max(highest, 8) / 8))))
    written = FuncFormatter(lambda num_bytes, _: format_bytes(num_bytes).replace(".0 ", " ").replace(".00 ", " "))
    axes.yaxis.set_major_formatter(written)


def tidy(axes: Axes, keep: tuple[str, ...] = ("left", "bottom")) -> None:
    """Leave only the spines named."""
    for side, spine in axes.spines.items():
        spine.set_visible(side in keep)
        spine.set_color(INK)
    axes.tick_params(axis="y", length=0, colors=INK)
    axes.tick_params(axis="x", colors=INK)


def draw_grid(axes: Axes) -> None:
    """Draw faint lines behind the data."""
    tidy(axes)
    axes.grid(True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def write_legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], *, loc: Any, columns: int = 1) -> None:
    """Name what is drawn, whatever the names are: matplotlib skips those that begin with "_", reads "$" as maths."""
    legend = figure.legend(handles, ["x"] * len(handles), loc=loc, ncols=columns, frameon=False, fontsize=9)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


def save(figure: Figure, path: Path) -> None:
    """Write a figure; the file appears under its name only when it is whole."""
    with new_file(path) as file, warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; that is no reason to fail or to warn.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(file, format=path.suffix.removeprefix(".") or None, dpi=_DOTS_PER_INCH, facecolor="white")
