"""Measuring memory, and choosing what to forget."""

from __future__ import annotations

from seqckpt.memory.peak_meter import PeakMeter

__all__ = ["PeakMeter"]
