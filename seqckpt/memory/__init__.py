"""Measuring memory, and choosing what to forget."""

from __future__ import annotations

from seqckpt.memory.allocated import AllocationRecord, peak_allocated_bytes
from seqckpt.memory.clock import time_step
from seqckpt.memory.cost_model import predict
from seqckpt.memory.costs import Costs, Prediction
from seqckpt.memory.peak_meter import PeakMeter
from seqckpt.memory.planner import hold_chunk_size, measure, plan_schedule, resolve_budget
from seqckpt.memory.sample import Sample
from seqckpt.memory.search import Fixed, predict_plain, smallest_budget, solve
from seqckpt.memory.suggest import (
    SuggestedCheckpoints,
    apply_suggestions,
    find_best_reset_points,
    suggest_checkpoint_location,
)
from seqckpt.memory.trace import trace_memory
from seqckpt.memory.trace_records import MemoryTrace, ModuleCall, ModuleRow, Moment, TraceTotals

__all__ = [
    "AllocationRecord",
    "Costs",
    "Fixed",
    "MemoryTrace",
    "ModuleCall",
    "ModuleRow",
    "Moment",
    "PeakMeter",
    "Prediction",
    "Sample",
    "SuggestedCheckpoints",
    "TraceTotals",
    "apply_suggestions",
    "find_best_reset_points",
    "hold_chunk_size",
    "measure",
    "peak_allocated_bytes",
    "plan_schedule",
    "predict",
    "predict_plain",
    "resolve_budget",
    "smallest_budget",
    "solve",
    "suggest_checkpoint_location",
    "time_step",
    "trace_memory",
]
