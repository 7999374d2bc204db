"""Memory by the allocator's own record: every allocation and release that torch makes while something runs.

Resident size (peak_meter.py) is what an operating system sees, and is cheap; it misses what is hidden by memory that
was freed but not given back. The allocator's record misses nothing and needs a profiler: for measuring, not training.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["AllocationRecord", "Interval", "peak_allocated_bytes"]

_MARK = "seqckpt mark "


@dataclass(frozen=True)
class Interval:
    """What was allocated between one mark and the next, in bytes above those at the start of the record."""

    name: str
    start_bytes: int
    peak_bytes: int
    end_bytes: int


class AllocationRecord:
    """A context in which allocations are recorded; `mark(name)` begins a new interval, `intervals` tells of each.

    On the CPU from the profiler's memory events, about 30 % slower than the code alone, and not together with another
    profiler; on CUDA from the caching allocator's statistics, whose peak is set back at every mark.

    >>> with AllocationRecord() as record:
    ...     x = torch.zeros(2**20, dtype=torch.uint8)
    ...     record.mark("twice")
    ...     y = x.add(1)
    >>> [interval.name for interval in record.intervals], record.intervals[1].start_bytes
    (['', 'twice'], 1048576)
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.intervals: list[Interval] = []
        self._names = [""]
        self._seen: list[tuple[int, int]] = []  # on CUDA: peak and level at the end of each interval

    @property
    def peak_bytes(self) -> int:
        """The most that was allocated at once, above what was allocated at the start."""
        return max(0, *(interval.peak_bytes for interval in self.intervals))

    def __enter__(self) -> AllocationRecord:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
        else:
            gc.collect()  # garbage of before, freed meanwhile, would count as freed by what runs
            # Else the profiler's library writes its own notices into the user's terminal; it reads this when it starts.
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
            self._profile = torch.autograd.profiler.profile(use_kineto=True, profile_memory=True)
            self._profile.__enter__()
        return self

    def mark(self, name: str) -> None:
        """End an interval, and begin one of this name."""
        if self.device.type == "cuda":
            self._read_cuda()
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with torch.profiler.record_function(f"{_MARK}{len(self._names)}"):
                pass
        self._names.append(name)

    def __exit__(self, *error: Any) -> None:
        if self.device.type == "cuda":
            self._read_cuda()
        else:
            self._profile.__exit__(*error)
            if error[0] is None:
                self._read_events()
        start = 0
        for name, (peak, end) in zip(self._names, self._seen, strict=False):
            self.intervals.append(Interval(name, start, peak, end))
            start = end

    def _read_cuda(self) -> None:
        torch.cuda.synchronize(self.device)
        peak, now = torch.cuda.max_memory_allocated(self.device), torch.cuda.memory_allocated(self.device)
        self._seen.append((peak - self._before, now - self._before))

    def _read_events(self) -> None:
        assert self._profile.kineto_results is not None
        allocated = peak = 0
        events = [(event.start_ns(), event) for event in self._profile.kineto_results.events()]
        event: Any
        for _, event in sorted(events, key=lambda entry: entry[0]):
            name = event.name()
            if name == "[memory]":
                allocated += event.nbytes()
                peak = max(peak, allocated)
            elif name.startswith(_MARK):
                self._seen.append((peak, allocated))
                peak = allocated
        self._seen.append((peak, allocated))


def peak_allocated_bytes(run: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Run a function and return by how much allocated memory rose above that at its start, at most, in bytes.

    >>> peak_allocated_bytes(lambda: torch.zeros(2**20, dtype=torch.uint8).add(1)) >= 2 * 2**20
    True
    """
    with AllocationRecord(device) as record:
        run()
    return record.peak_bytes
