"""Choices of one random case: made from its own seed, and written down, so that coverage can be counted."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["Draw", "seed_all"]


class Draw:
    """Draws choices from a generator of its own, so that building a case twice gives the same case twice.

    `ingredients` are the names of all that was drawn. `generators` are the random generators that the case's modules
    hold, whose states are compared afterwards.
    """

    def __init__(self, seed: int, number: int) -> None:
        self.seed = seed * 1_000_003 + number
        self.random = random.Random(self.seed)
        self.ingredients: list[str] = []
        self.generators: dict[str, Any] = {}

    def one(self, what: str, options: Mapping[str, Any] | Sequence[Any], weights: Sequence[float] | None = None) -> Any:
        """One of the options, written down as "what: option"; of a mapping the value, of a sequence the option."""
        names = list(options)
        name = self.random.choices(names, weights)[0]
        self.ingredients.append(f"{what}: {name}")
        return options[name] if isinstance(options, Mapping) else name

    def chance(self, what: str, probability: float) -> bool:
        """True with the probability given, and then written down."""
        hit = self.random.random() < probability
        if hit:
            self.ingredients.append(what)
        return hit

    def number(self, low: int, high: int) -> int:
        """A whole number, both ends included; not written down."""
        return self.random.randint(low, high)

    def generator(self, kind: str, make: Callable[[int], Any]) -> Any:
        """A random generator of the case's own, seeded."""
        made = make(self.random.randrange(2**31))
        self.generators[f"{kind} {len(self.generators)}"] = made
        return made


def seed_all(seed: int) -> None:
    """Set the global states of torch, Python and NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator is what is to be fixed
