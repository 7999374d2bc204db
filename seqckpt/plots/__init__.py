"""Pictures from plain records: results of training, and memory. They are drawn without pyplot, and appear whole."""

from seqckpt.plots.annotated_video import PhaseBand, choose_drawn_size, write_annotated_video
from seqckpt.plots.comparison import FrontPoint, plot_front, plot_series
from seqckpt.plots.confusion import plot_confusion
from seqckpt.plots.memory import MemoryPoint, compare_traces, plot_peak_memory, plot_trace
from seqckpt.plots.planning import PlanPoint, plot_trade_off
from seqckpt.plots.results import Ribbon, phase_style, plot_curves, plot_ribbons
from seqckpt.plots.style import PALETTE

__all__ = [
    "PALETTE",
    "FrontPoint",
    "MemoryPoint",
    "PhaseBand",
    "PlanPoint",
    "Ribbon",
    "choose_drawn_size",
    "compare_traces",
    "phase_style",
    "plot_confusion",
    "plot_curves",
    "plot_front",
    "plot_peak_memory",
    "plot_ribbons",
    "plot_series",
    "plot_trace",
    "plot_trade_off",
    "write_annotated_video",
]
