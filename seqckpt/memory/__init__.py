"""Measuring memory, and choosing what to forget."""

from __future__ import annotations

from seqckpt.memory.allocated import AllocationRecord, peak_allocated_bytes
from seqckpt.memory.cost_model import Costs, Prediction, predict
from seqckpt.memory.peak_meter import PeakMeter
from seqckpt.memory.planner import (
    Fixed,
    hold_chunk_size,
    measure,
    plan_schedule,
    predict_plain,
    resolve_budget,
    smallest_budget,
    solve,
)
from seqckpt.memory.step_costs import Sample

__all__ = [
    "AllocationRecord",
    "Costs",
    "Fixed",
    "PeakMeter",
    "Prediction",
    "Sample",
    "hold_chunk_size",
    "measure",
    "peak_allocated_bytes",
    "plan_schedule",
    "predict",
    "predict_plain",
    "resolve_budget",
    "smallest_budget",
    "solve",
]
