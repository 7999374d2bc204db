"""Tensors handed to a function that may change them in place, without harm to what is stored or to the caller's own.

A first layer that works in place (`ReLU(inplace=True)`, `frames.sub_(mean)`) changes the tensor that its replay is to
start from, and may not be run on a leaf of a graph at all. The plain run has neither difficulty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqckpt.errors import ReplayError

__all__ = ["HandOver"]


class HandOver:
    """Hands out copies where the function writes into what it gets, and the tensors themselves where it does not.

    Which of both is learnt from the first call with tensors (a state may be None at first): `of(leaves)` before it
    gives copies, `learn()` after it looks whether they were written to. Cost: one copy of the first piece; of every
    piece where the function does write. Under inference mode, where tensors count no changes, every piece is copied.
    A function that writes only later is an error: what it wrote into is needed for its replay. `safe`: known to write
    nothing.
    """

    def __init__(self, *, safe: bool = False) -> None:
        self.copies: bool | None = False if safe else None
        self.watched: list[tuple[Tensor, int]] = []
        self.lent: list[tuple[Tensor, int]] = []
        self.watching = not safe

    def of(self, leaves: Sequence[Any]) -> list[Any]:
        if self.copies is False:
            handed = [_inner(leaf) for leaf in leaves]
            if self.watching:
                tensors = (leaf for leaf in handed if isinstance(leaf, Tensor) and not leaf.is_inference())
                self.lent += [(leaf, leaf._version) for leaf in tensors]
            return handed
        handed = [_copy(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        if self.copies is None and not torch.is_inference_mode_enabled():
            self.watched += [(leaf, leaf._version) for leaf in handed if isinstance(leaf, Tensor)]
        return handed

    def learn(self) -> None:
        if any(tensor._version > version for tensor, version in self.lent):
            raise ReplayError(
                "the function to be replayed changed its input in place, which it did not do in its first run of this "
                "call: a replay would start from changed values. Work on a copy there (x = x * -1 for x.mul_(-1))"
            )
        self.lent = []
        if self.watched:
            self.copies = any(tensor._version > version for tensor, version in self.watched)
        self.watched = []


def _copy(tensor: Tensor) -> Tensor:
    """With the same strides, gaps included: kernels sum in the order of the layout, and another rounds differently."""
    if tensor.layout != torch.strided or tensor.is_contiguous() or 0 in tensor.stride():
        return tensor.clone()
    like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return like.copy_(tensor)


def _inner(leaf: Any) -> Any:
    """Not a leaf of the graph but a view of it: hooks that modules put on their arguments refuse leaves."""
    return leaf.view_as(leaf) if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_leaf else leaf
