"""How much memory a device still has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

__all__ = ["free_bytes"]


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be had on a device: of a CPU's memory, within the limits of this process's control group."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    figures = [_available_memory(), *_control_group_memory()]
    return min(figure for figure in figures if figure is not None) if any(figures) else 4 * 2**30


def _available_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # another system: half of what it has, where it tells
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        except (ValueError, OSError, AttributeError):
            return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _control_group_memory() -> Iterator[int]:
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            numbers = [(Path("/sys/fs/cgroup") / name).read_text().strip() for name in (limit, used)]
        except OSError:
            continue
        if all(number.isdigit() for number in numbers):
            yield max(0, int(numbers[0]) - int(numbers[1]) + _reclaimable(Path("/sys/fs/cgroup") / used))


def _reclaimable(used: Path) -> int:
    """Bytes of files that the kernel keeps in memory as long as nobody needs it: they count as used."""
    try:
        lines = used.with_name("memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
