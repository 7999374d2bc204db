"""The order in which people count names: video2 before video10."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["sort_naturally"]

Item = TypeVar("Item")


def sort_naturally(items: Iterable[Item], *, key: Callable[[Item], str]) -> list[Item]:
    """Sort by names, the numbers in them compared as numbers.

    >>> sort_naturally(["video10", "video2", "video02b"], key=str)
    ['video2', 'video02b', 'video10']
    """

    def parts(item: Item) -> tuple[list[tuple[str, int]], str]:
        name = key(item)
        words = re.findall(r"([^0-9]*)([0-9]*)", name)
        return [(text, int(number or -1)) for text, number in words], name

    return sorted(items, key=parts)
