"""A run's budget of memory: what happens when a step passes it, or when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from seqckpt.memory import AllocationRecord
from seqckpt.units import format_bytes

__all__ = ["Budget", "is_out_of_memory"]

_WITHOUT_A_FIGURE = 1.25  # a step that ran out of memory is taken to have needed so much more than was planned


@dataclass
class Budget:
    """Watches the first step of a run; where it passes the budget, or memory runs out, a new schedule is chosen, once.

    Args:
        limit_bytes: the budget.
        resident_bytes: what is there before the first step.
        replan: called with the factor by which the step passed its plan; sets another schedule on the model, and
            returns it in words. Raises BudgetError where there is none.
    """

    limit_bytes: int
    resident_bytes: int
    replan: Callable[[float], str]
    is_open: bool = True

    @contextmanager
    def watching(self, device: torch.device, say: Callable[[str], object]) -> Iterator[None]:
        """Record the first step's allocations; where they pass the budget, plan again, and say so."""
        if not self.is_open:
            yield
            return
        with AllocationRecord(device) as record:
            yield
        total = record.peak_bytes + self.resident_bytes
        if self.is_open and total > self.limit_bytes:
            chosen = self.replan(total / self.limit_bytes)
            say(
                f"the first step took {format_bytes(total)}, more than the budget of {format_bytes(self.limit_bytes)}: "
                f"planned again: {chosen}"
            )
        self.is_open = False

    def ran_out(self) -> str | None:
        """Plan again after memory ran out, if that was not done yet; None if it was."""
        if not self.is_open:
            return None
        self.is_open = False
        return f"memory ran out: planned again: {self.replan(_WITHOUT_A_FIGURE)}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device, or the machine, has no memory left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("not enough memory", "can't allocate memory", "out of memory")
    )
