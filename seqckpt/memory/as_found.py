"""Measuring that leaves a model as it was: buffers, random states and gradients are put back, also after an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from seqckpt.core.random_states import RandomStates
from seqckpt.core.surroundings import BufferGuard, accelerators_of

__all__ = ["as_found", "without_gradients"]


@contextmanager
def as_found(modules: Sequence[nn.Module], tensors: Iterable[Tensor]) -> Iterator[None]:
    """Put buffers and random states back."""
    states = RandomStates(accelerators_of(tensors), modules)
    before = states.read()
    with BufferGuard(modules).untouched():
        try:
            yield
        finally:
            states.write(before)


@contextmanager
def without_gradients(tensors: Iterable[Tensor]) -> Iterator[Callable[[Iterable[Tensor]], None]]:
    """Set the gradients of leaves aside, and those of more of them when they are known; put all back."""
    aside: dict[int, tuple[Tensor, Tensor | None]] = {}

    def set_aside(leaves: Iterable[Tensor]) -> None:
        for leaf in leaves:
            if leaf.is_leaf and leaf.requires_grad and id(leaf) not in aside:
                aside[id(leaf)] = leaf, leaf.grad
                leaf.grad = None

    try:
        set_aside(tensors)
        yield set_aside
    finally:
        for leaf, gradient in aside.values():
            leaf.grad = gradient
