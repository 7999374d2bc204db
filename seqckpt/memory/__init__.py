"""Measuring memory, and choosing what to forget."""

from __future__ import annotations

from seqckpt.memory.allocated import peak_allocated_bytes
from seqckpt.memory.peak_meter import PeakMeter

__all__ = ["PeakMeter", "peak_allocated_bytes"]
