"""Where sequences are cut: lengths that users give, checked once, and the spans that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

__all__ = ["balanced_spans", "check_length", "check_levels", "fixed_spans"]


def check_length(value: Any, name: str, *, at_least: int = 1) -> int:
    """A whole number of at least 1 (or `at_least`), or TypeError / ValueError naming the argument."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); expected a whole number of at least {at_least}")
    if (length := value.__index__()) < at_least:
        raise ValueError(f"{name} is {length}; expected a whole number of at least {at_least}")
    return length


def check_levels(value: Any, name: str) -> tuple[int, ...]:
    """One length, or the lengths of nested levels from the longest to the shortest."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return (check_length(value, name),)
    levels = tuple(check_length(length, name) for length in value)
    if not levels or any(inner >= outer for outer, inner in pairwise(levels)):
        raise ValueError(
            f"{name} is {list(levels)}; expected lengths of nested levels, each shorter than the one before"
        )
    return levels


def fixed_spans(start: int, stop: int, length: int) -> list[tuple[int, int]]:
    """Cut a range into spans of `length`; the last one takes what is left.

    >>> fixed_spans(0, 20, 7)
    [(0, 7), (7, 14), (14, 20)]
    """
    return [(a, min(a + length, stop)) for a in range(start, stop, length)]


def balanced_spans(num_rows: int, max_length: int) -> list[tuple[int, int]]:
    """Cut a range into as few spans as `max_length` allows, of lengths that differ by at most one.

    >>> balanced_spans(33, 16)
    [(0, 11), (11, 22), (22, 33)]
    """
    num_spans = -(-num_rows // max_length)
    bounds = [num_rows * k // num_spans for k in range(num_spans + 1)]
    return list(pairwise(bounds))
