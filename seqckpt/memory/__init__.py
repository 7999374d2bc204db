"""Measuring memory, and choosing what to forget."""

from __future__ import annotations

from seqckpt.memory.allocated import peak_allocated_bytes
from seqckpt.memory.peak_meter import PeakMeter
from seqckpt.memory.suggest import (
    SuggestedCheckpoints,
    apply_suggestions,
    find_best_reset_points,
    suggest_checkpoint_location,
)
from seqckpt.memory.trace import trace_memory
from seqckpt.memory.trace_records import MemoryTrace, ModuleCall, ModuleRow, Moment, TraceTotals

__all__ = [
    "MemoryTrace",
    "ModuleCall",
    "ModuleRow",
    "Moment",
    "PeakMeter",
    "SuggestedCheckpoints",
    "TraceTotals",
    "apply_suggestions",
    "find_best_reset_points",
    "peak_allocated_bytes",
    "suggest_checkpoint_location",
    "trace_memory",
]
