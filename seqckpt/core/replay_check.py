"""The replay check: an opt-in debugging mode that compares the values of every replay with those of the first run.

torch's own determinism check compares shapes, dtypes and devices. A replay that computes other *values* (dropout drawn
outside torch's generators, a counter that enters the output, frames that read differently the second time) gives wrong
gradients with all shapes right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from seqckpt.errors import ReplayError

__all__ = ["ReplayComparison", "check_replay", "relative_tolerance", "replay_check_enabled", "replays_are_compared"]

_enabled: ContextVar[bool | None] = ContextVar("seqckpt_check_replay", default=None)

_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Relative to the largest entry: above what a kernel differs with and without grad mode, far below any other mask."""


@contextmanager
def check_replay(enabled: bool = True) -> Iterator[None]:
    """Compare values in every replay of what is run inside; raise ReplayError at the first that differs.

    Costs a copy of every output until backward, and time to compare; meant for a few steps of debugging. Without it
    every replay is held against a checksum of each of its results. `check_replay(False)` compares nothing at all: for a
    function whose results are not to repeat and whose gradients are right all the same.
    """
    token = _enabled.set(enabled)
    try:
        yield
    finally:
        _enabled.reset(token)


def replay_check_enabled() -> bool:
    return _enabled.get() is True


def replays_are_compared() -> bool:
    return _enabled.get() is not False


class ReplayComparison:
    """What the pieces of one first run returned, for the replays to be held against."""

    def __init__(self) -> None:
        self.results: dict[int, list[Any]] = {}

    def remember(self, k: int, flat_results: Sequence[Any]) -> None:
        self.results[k] = [t.detach().clone() if isinstance(t, Tensor) else t for t in flat_results]

    def end_first_run(self, weights: Sequence[Tensor]) -> None:
        self.weights = list(weights)
        self.fingerprints = self._fingerprints()

    def _fingerprints(self) -> list[tuple[float, float]]:
        """Two sums of each weight, to notice changes made behind its version counter."""
        with torch.no_grad():
            return [(float(w.double().sum()), float(w.double().square().sum())) for w in self.weights]

    def compare(self, k: int, where: str, replay: Callable[[], list[Any]]) -> None:
        """Run `replay` (the results of piece k, flat) and raise ReplayError if they differ from the first run's."""
        results = replay()
        found = _find_difference(self.results[k], results)
        if found is None:
            return
        if self._fingerprints() != self.fingerprints:
            cause = "Its parameters were changed between forward and backward: call backward before any change."
        elif _find_difference(results, replay()) is not None:
            cause = (
                "Two replays in a row differ too: a random generator of its own, or a kernel that is not deterministic."
            )
        else:
            cause = (
                "Replays agree with each other, so something changed in between: an attribute that it counts up, a "
                "cache, batch norm statistics that enter the output, or data that reads differently now."
            )
        raise ReplayError(f"the replay of {where} does not repeat its first run: {found}. Likely cause: {cause}")


def _find_difference(first: Sequence[Any], second: Sequence[Any]) -> str | None:
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        if not isinstance(a, Tensor):
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {i} had shape {tuple(a.shape)} and {a.dtype}, now {tuple(b.shape)} and {b.dtype}"
        difference, allowed = _difference(a, b)
        if difference > allowed:
            return f"result {i} differs by up to {difference:.3g} (its values reach {float(a.abs().max()):.3g})"
    return None


def _difference(a: Tensor, b: Tensor) -> tuple[float, float]:
    if a.numel() == 0:
        return 0.0, 0.0
    if not (a.is_floating_point() or a.is_complex()):
        return float((a != b).sum()), 0.0
    with torch.no_grad():
        same = (a == b) | (a.isnan() & b.isnan())
        difference = torch.where(same, torch.zeros((), dtype=a.dtype, device=a.device), a - b).abs()
        largest = float(difference.nan_to_num(nan=float("inf")).max())
        scale = float(a.abs().nan_to_num(nan=0.0, posinf=0.0).max())
    return largest, relative_tolerance(a.dtype) * max(scale, 1e-30)


def relative_tolerance(dtype: torch.dtype) -> float:
    """How much of the largest value two runs of the same function may differ by."""
    return _TOLERANCE.get(dtype, 1e-4)
