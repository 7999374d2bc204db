"""Several ways to do the same work, measured beside each other: who still fits, whose peak, whose seconds in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from seqckpt.bench.gradient_errors import Errors
from seqckpt.bench.worker import DoesNotFit, Refused, Worker
from seqckpt.units import format_bytes

__all__ = ["Figures", "fits", "measure_side_by_side", "workers"]

_ROOM = 0.85  # of what is free: what may be asked of the machine


@dataclass
class Figures:
    """What was measured of one way: seconds of each step, bytes of its peak, and the gradients' errors.

    `problem` says why there are none: that it does not fit, or cannot be had.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    with_gradients_bytes: int | None = None
    gradient_errors: Errors = field(default_factory=dict)
    problem: str | None = None

    @property
    def step_seconds(self) -> float | None:
        """The median step."""
        return median(self.seconds) if self.seconds else None

    def to_record(self, **more: Any) -> dict[str, Any]:
        """As plain data, with the median, and what else belongs to it."""
        return {**more, **vars(self), "step_seconds": self.step_seconds}


def fits(predicted_bytes: float, free_bytes: float) -> str | None:
    """None if that much may be tried on the machine, otherwise why not.

    >>> fits(2 * 2**30, 16 * 2**30)
    >>> fits(27 * 2**30, 16 * 2**30)
    'does not fit: would need about 27.00 GiB, 16.00 GiB are free'
    """
    if predicted_bytes <= _ROOM * free_bytes:
        return None
    return f"does not fit: would need about {format_bytes(predicted_bytes)}, {format_bytes(free_bytes)} are free"


@contextmanager
def workers(
    ways: Mapping[str, Mapping[str, Any]], build: Callable[..., Any], *, limit_bytes: int | None = None
) -> Iterator[dict[str, Worker]]:
    """A worker for each way, its subject made by `build(**ways[name])`; all end with the block."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Worker(build, limit_bytes=limit_bytes, **arguments))
            for name, arguments in ways.items()
        }


def measure_side_by_side(
    ways: Mapping[str, Mapping[str, Any]],
    build: Callable[..., Any],
    *,
    num_steps: int,
    num_warm_ups: int = 1,
    peaks: bool = True,
    limit_bytes: int | None = None,
    tick: Callable[[str], object] = lambda name: None,
) -> dict[str, Figures]:
    """Measure ways by workers that live side by side: each one's peak (`peaks`), then steps in turn, round by round.

    The step whose peak is taken is one of the warm-ups; where no more are asked for (`num_steps=0`), its seconds stand
    for the median. A way that fails has a `problem` and drops out. `tick` is
    called with a way's name before each step.
    """
    found = {name: Figures(name) for name in ways}
    with workers(ways, build, limit_bytes=limit_bytes) as there:

        def attempt(name: str, request: str) -> Any:
            if found[name].problem is not None:
                return None
            tick(name)
            try:
                return there[name].ask(request)
            except DoesNotFit as error:
                found[name].problem = f"does not fit: {error}"
            except Refused as error:
                found[name].problem = f"fails: {error}"
            return None

        for name in ways if peaks else ():
            peak = attempt(name, "peak")
            if peak is not None:
                found[name].peak_bytes = peak["peak_bytes"]
                found[name].with_gradients_bytes = peak["with_gradients_bytes"]
                found[name].seconds = [] if num_steps else [peak["seconds"]]
        for _ in range(num_warm_ups - peaks if num_steps else 0):
            for name in ways:
                attempt(name, "time")
        for _ in range(num_steps):
            for name in ways:
                seconds = attempt(name, "time")
                if seconds is not None:
                    found[name].seconds.append(seconds)
    return found
