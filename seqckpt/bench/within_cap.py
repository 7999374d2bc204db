"""The largest size whose step stays within a cap of memory: found by prediction, held against measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Largest", "Trial", "find_largest"]

_LEAP = 8  # times the largest known size: farther than that no line through small sizes is to be trusted
_RESOLUTION = 0.02  # of the size: nearer to the largest one nobody needs to know it


@dataclass(frozen=True)
class Trial:
    """A size, the bytes foretold for it (None for the first two), and those measured; None: it did not fit at all."""

    size: int
    predicted_bytes: int | None
    actual_bytes: int | None


@dataclass
class Largest:
    """What was found: the largest size that fits; `is_open` if it is as large as was asked for, and more would fit."""

    size: int
    actual_bytes: int
    is_open: bool = False
    trials: list[Trial] = field(default_factory=list)

    @property
    def predicted_bytes(self) -> int | None:
        """What was foretold for the size found, if it was."""
        return next((trial.predicted_bytes for trial in reversed(self.trials) if trial.size == self.size), None)


def find_largest(
    measure: Callable[[int], int | None], cap_bytes: int, *, first: tuple[int, int], most: int, most_trials: int = 8
) -> Largest | None:
    """Bisect for the largest size with `measure(size) <= cap_bytes`, each next size foretold by the line through two.

    `measure` returns None for what does not fit at all. `first`: two small sizes to begin with; `most`: how far to go.
    Returns None if not even the first fits. Ends where the size is known to 2 %.

    >>> find_largest(lambda size: 100 + 7 * size, 1000, first=(1, 2), most=10_000).size
    128
    """
    trials = [Trial(size, None, measure(size)) for size in first]
    points = [(trial.size, trial.actual_bytes) for trial in trials if trial.actual_bytes is not None]
    fitting = [point for point in points if point[1] <= cap_bytes]
    if not fitting:
        return None
    low, high = max(fitting)[0], min((t.size for t in trials if t.size > max(fitting)[0]), default=most + 1)
    while len(trials) < most_trials and high - low > max(1, round(_RESOLUTION * low)) and len(points) > 1:
        (a, bytes_a), (b, bytes_b) = sorted(points, key=lambda point: abs(point[1] - cap_bytes))[:2]
        slope = (bytes_b - bytes_a) / (b - a)
        guess = a + int((cap_bytes - bytes_a) // slope) if slope > 0 else most
        if guess >= high and high <= most:  # something below it did not fit: the line is not to be trusted
            guess = (low + high) // 2
        guess = min(guess, _LEAP * low)
        size = min(max(guess, low + max(1, round(_RESOLUTION * low))), high - 1, most)
        predicted = round(bytes_a + slope * (size - a))
        trials.append(Trial(size, predicted, measure(size)))
        actual = trials[-1].actual_bytes
        if actual is not None:
            points.append((size, actual))
        if actual is not None and actual <= cap_bytes:
            low = size
        else:
            high = size
    largest = next(trial for trial in trials if trial.size == low)
    assert largest.actual_bytes is not None
    return Largest(low, largest.actual_bytes, is_open=low >= most, trials=trials)
