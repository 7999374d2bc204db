"""A run's budget of memory: what happens when a step passes it, or when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

from seqckpt.errors import TrainingError
from seqckpt.memory import AllocationRecord
from seqckpt.units import format_bytes

__all__ = ["Budget", "is_out_of_memory", "out_of_memory_explained", "run_within"]

T = TypeVar("T")

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
        line = f"the first step took {format_bytes(total)} of the budget of {format_bytes(self.limit_bytes)}"
        if self.is_open and total > self.limit_bytes:
            line += f", which is too much; planned again: {self.replan(total / self.limit_bytes)}"
        say(line)
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


@contextmanager
def out_of_memory_explained(where: Callable[[], str]) -> Iterator[None]:
    """Raise TrainingError, with what to lower, in the place of whatever says that memory ran out in this context."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, TrainingError) or not is_out_of_memory(error):
            raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise TrainingError(
            f"memory ran out {where()}: {reason}\nGive memory.budget (such as memory.budget=8GiB, or auto), lower it, "
            "or lower memory.chunk_size, train.batch_size or data.clip_length"
        ) from error


def run_within(
    budget: Budget | None,
    run: Callable[[], T],
    *,
    start_again: Callable[[], object],
    device: torch.device,
    say: Callable[[str], object],
) -> T:
    """Run a step's forward and backward; where memory runs out under a budget, plan again and run once more.

    The second run begins with `start_again()` and the random states of the first. Raises the error of memory where
    there is no budget, or was planned again before.
    """
    gpus = [device] if device.type == "cuda" else []
    random_state, gpu_states = torch.get_rng_state(), [torch.cuda.get_rng_state(gpu) for gpu in gpus]
    try:
        return run()
    except (RuntimeError, MemoryError) as error:
        line = budget.ran_out() if budget is not None and is_out_of_memory(error) else None
        if line is None:
            raise
    # Outside of `except`: the error's traceback would hold the step's tensors.
    say(line)
    start_again()
    torch.set_rng_state(random_state)
    for gpu, state in zip(gpus, gpu_states, strict=True):
        torch.cuda.empty_cache()
        torch.cuda.set_rng_state(state, gpu)
    return run()
