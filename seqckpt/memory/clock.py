"""Seconds of what runs on a CPU or a GPU: between stamps, of a whole step, of what is repeated for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

__all__ = ["Clock", "repeat_for_a_moment", "time_step"]

T = TypeVar("T")


def time_step(step: Callable[[], object], device: torch.device | str) -> float:
    """Run a step and return its seconds, with the work that it has left to a GPU."""
    started = time.perf_counter()
    step()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def repeat_for_a_moment(run: Callable[[], T], *, seconds: float = 0.06, least: int = 2, most: int = 10) -> list[T]:
    """Results of some runs, all of them within about so many seconds: what is short is noisy, and cheap to repeat."""
    started, results = time.perf_counter(), [run()]
    while len(results) < least or (len(results) < most and time.perf_counter() - started < seconds):
        results.append(run())
    return results


class Clock:
    """Time stamps in a row of work: on CUDA events in the stream, read at the end, so that nothing waits for them."""

    def __init__(self, device: torch.device) -> None:
        self.is_cuda = device.type == "cuda"
        self.stamps: list[Any] = []

    def mark(self) -> None:
        if self.is_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.stamps.append(event)
        else:
            self.stamps.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Between each stamp and the next."""
        pairs = zip(self.stamps, self.stamps[1:], strict=False)
        if not self.is_cuda:
            return [b - a for a, b in pairs]
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1000 for a, b in pairs]
