"""Peak memory of one training step: the allocator's peak on CUDA, the growth of peak resident size on a CPU.

On Linux the kernel keeps a high-water mark of a process's resident size, which can be set back
(`/proc/self/clear_refs`, see proc(5)), so that each step has its own. Memory that the C library has freed but not given
back would hide growth: a step that reuses it does not grow. `start` therefore gives it back first (`malloc_trim`, glibc
only), which costs milliseconds. Elsewhere only a mark over the whole life of the process can be had; `meaning` says so.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch

__all__ = ["PeakMeter"]

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMeter:
    """Measure the peak memory between `start()` and `read()`, in bytes.

    On a CPU: by how much resident size rose above that at `start()`, all threads of this process together, files mapped
    into memory included. On CUDA: the most that torch's allocator had handed out on `device`, parameters included.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._before = 0
        self._trim = _find_malloc_trim()
        self._can_reset = self.device.type == "cpu" and _reset_high_water_mark()

    @property
    def meaning(self) -> str:
        """Say in words what the number is."""
        if self.device.type == "cuda":
            return "peak of torch's allocator in a step"
        if self._can_reset:
            return "growth of peak resident size in a step"
        return "growth of peak resident size since the start" if _high_water_mark() is not None else "not measured"

    def start(self) -> None:
        """Begin a step."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self._can_reset:
            self._trim()
            _reset_high_water_mark()
            self._before = _read_status("VmRSS")
        elif not self._before:
            self._before = _high_water_mark() or 0

    def read(self) -> int | None:
        """Return the peak since `start()`, or None where this system tells nothing."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        peak = _high_water_mark()
        return None if peak is None else max(0, peak - self._before)


def _reset_high_water_mark() -> bool:
    try:
        _CLEAR.write_text("5")
    except OSError:  # another system, or a container that forbids it
        return False
    return True


def _high_water_mark() -> int | None:
    if _STATUS.exists():
        return _read_status("VmHWM")
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _read_status(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _find_malloc_trim() -> Callable[[], object]:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda: None
    return lambda: trim(0)
