"""Measuring memory, and choosing what to forget."""

from __future__ import annotations

from seqckpt.memory.allocated import peak_allocated_bytes
from seqckpt.memory.peak_meter import PeakMeter
from seqckpt.memory.trace import trace_memory
from seqckpt.memory.trace_records import MemoryTrace, ModuleCall, ModuleRow, Moment, TraceTotals

__all__ = [
    "MemoryTrace",
    "ModuleCall",
    "ModuleRow",
    "Moment",
    "PeakMeter",
    "TraceTotals",
    "peak_allocated_bytes",
    "trace_memory",
]
