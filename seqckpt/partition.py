"""The best places to cut a list of sizes into parts whose largest is as small as possible."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["partition"]


def partition(sizes: Sequence[int], num_parts: int) -> tuple[int, list[int]]:
    """Cut `sizes` into at most `num_parts` consecutive parts so that the largest sum is as small as it can be.

    Returns that largest sum and the positions of the cuts. Exact, by bisection on the answer: O(n log(sum)) time; sizes
    are whole numbers from 0 up, of any magnitude.

    >>> partition([10, 8, 8, 9, 7, 7, 5, 4, 4], 2)
    (35, [4])
    """
    low, high = max(sizes, default=0), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if len(_fill(sizes, middle)) < num_parts:
            high = middle
        else:
            low = middle + 1
    return low, _fill(sizes, low)


def _fill(sizes: Sequence[int], limit: int) -> list[int]:
    """Cut as late as the limit allows."""
    cuts, total = [], 0
    for position, size in enumerate(sizes):
        total += size
        if total > limit:
            cuts.append(position)
            total = size
    return cuts
