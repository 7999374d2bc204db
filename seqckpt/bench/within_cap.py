"""The largest size whose step stays within a cap of memory: found by prediction, held against measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Largest", "Trial", "find_largest"]

_LEAP = 8  # times the largest known size: farther than that no line through small sizes is to be trusted
_TRUSTED = 8  # trials after which lines have not helped: from there on halves
_RESOLUTION = 0.02  # of the size: nearer to the largest one nobody needs to know it


@dataclass(frozen=True)
class Trial:
    """A size, the bytes foretold for it (None for the first two), and those measured; None: it did not fit at all."""

    size: int
    predicted_bytes: int | None
    actual_bytes: int | None


@dataclass
class Largest:
    """What was found: the largest size that fits; `is_open` if it is as large as was asked for: more may fit."""

    size: int
    actual_bytes: int
    is_open: bool = False
    trials: list[Trial] = field(default_factory=list)

    @property
    def predicted_bytes(self) -> int | None:
        """What was foretold for the size found, if it was."""
        return next((trial.predicted_bytes for trial in reversed(self.trials) if trial.size == self.size), None)


def find_largest(
    measure: Callable[[int], int | None], cap_bytes: int, *, first: tuple[int, int], most: int
) -> Largest | None:
    """Search for the largest size with `measure(size) <= cap_bytes`, each next size foretold by the line through two.

    `measure` returns None for what does not fit at all, and otherwise bytes that grow with the size. `first`: two
    sizes to begin with; `most`: how far to go. Returns None if not even the first fits. Ends where the size is known
    to 2 %, from below.

    >>> find_largest(lambda size: 100 + 7 * size, 1000, first=(1, 2), most=10_000).size
    128
    """
    if not 0 < first[0] < first[1] <= most:
        raise ValueError(f"first={first}, most={most}: expected two growing sizes from 1 to most")
    trials: list[Trial] = []
    points: list[tuple[int, int]] = []
    low, high = 0, most + 1

    def attempt(size: int, predicted: int | None) -> None:
        nonlocal low, high
        actual = measure(size)
        trials.append(Trial(size, predicted, actual))
        if actual is not None:
            points.append((size, actual))
        if actual is not None and actual <= cap_bytes:
            low = max(low, size)
        else:
            high = min(high, size)

    for size in first:
        if size < high:
            attempt(size, None)
    while low and high - low > max(1, round(_RESOLUTION * low)):
        least = low + max(1, round(_RESOLUTION * low))
        middle = (low + high) // 2 if high <= most else min(_LEAP * low, most)
        size, predicted = middle, None
        if len(points) > 1:
            (a, bytes_a), (b, bytes_b) = sorted(points, key=lambda point: abs(point[1] - cap_bytes))[:2]
            slope = (bytes_b - bytes_a) / (b - a)
            guess = a + int((cap_bytes - bytes_a) // slope) if slope > 0 else most
            if guess < high and len(trials) < _TRUSTED:
                size = min(guess, _LEAP * low)
            size = min(max(size, least), high - 1)
            predicted = round(bytes_a + slope * (size - a))
        attempt(min(max(size, least), high - 1), predicted)
    if not low:
        return None
    largest = next(trial for trial in trials if trial.size == low)
    assert largest.actual_bytes is not None
    return Largest(low, largest.actual_bytes, is_open=low >= most, trials=trials)
