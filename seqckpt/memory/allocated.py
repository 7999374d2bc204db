"""Peak memory by the allocator's own record: every allocation and release that torch makes while a function runs.

Resident size (peak_meter.py) is what an operating system sees, and is cheap; it misses what is hidden by memory that
was freed but not given back. The allocator's record misses nothing and needs a profiler: for measuring, not training.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["peak_allocated_bytes"]


def peak_allocated_bytes(run: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Run a function and return by how much allocated memory rose above that at its start, at most, in bytes.

    On the CPU from torch.profiler's memory events, about 30 % slower than the function alone; on CUDA from the caching
    allocator's statistics, at no cost.

    >>> peak_allocated_bytes(lambda: torch.zeros(2**20, dtype=torch.uint8).add(1)) >= 2 * 2**20
    True
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    assert profile.profiler is not None
    events = profile.profiler.kineto_results.events()  # the events in full: the public tables sum them up per operator
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    allocated = peak = 0
    for _, num_bytes in changes:
        allocated += num_bytes
        peak = max(peak, allocated)
    return peak
