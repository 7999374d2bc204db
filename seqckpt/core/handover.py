"""Tensors handed to a function that may change them in place, without harm to what is stored or to the caller's own.

A first layer that works in place (`ReLU(inplace=True)`, `frames.sub_(mean)`) changes the tensor that its replay is to
start from, and may not be run on a leaf of a graph at all. The plain run has neither difficulty.

What is handed on has exactly the strides of what was given: dropout draws its mask in the order of memory, and kernels
sum in it. Where a dimension has one entry its stride is arbitrary, and `view_as` and `clone` choose another than the
tensor's own: one frame in channels_last is then no longer in channels_last for the layers behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqckpt.errors import ReplayError

__all__ = ["HandOver", "share_memory", "with_strides"]


class HandOver:
    """Hands out copies where the function writes into what it gets, and the tensors' own memory where it does not.

    `of(k, leaves)` goes before piece k's function, `learn(k)` behind it. In a first run without a graph every piece
    gets a copy, which costs its time and no memory that counts; whether it was written to is known in the replay.
    Where a graph is alive beside it, a copy is made as long as that cannot be known: in the first piece, after one that
    was written to, and where numbers are drawn (`is_random`), since what is written may hang on them. A function that
    writes later all the same is an error. `safe`: known to write nothing.
    """

    def __init__(self, *, safe: bool = False) -> None:
        self.safe = safe
        self.is_random = False
        self.wrote: dict[int, bool] = {}  # pieces, and whether their function wrote in its first run
        self.watched: list[tuple[Tensor, int]] = []
        self.copied = False

    def of(self, k: int, leaves: Sequence[Any], *, beside_graph: bool) -> list[Any]:
        self.copied = not self.safe and self._copies(k, beside_graph)
        handed = [_Handed.apply(leaf, self.copied) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        if not self.safe:
            tensors = (leaf for leaf in handed if isinstance(leaf, Tensor) and not leaf.is_inference())
            self.watched = [(leaf, leaf._version) for leaf in tensors]
        return handed

    def _copies(self, k: int, beside_graph: bool) -> bool:
        if k in self.wrote:
            return self.wrote[k]
        return not beside_graph or not self.wrote or self.is_random or any(self.wrote.values())

    def learn(self, k: int) -> None:
        if not self.watched:  # a state of None: nothing to learn from
            return
        wrote = any(tensor._version > version for tensor, version in self.watched)
        self.watched = []
        if wrote and not self.copied:
            raise ReplayError(
                "the function to be replayed changed its input in place, which it did not do in its first run or in "
                "the pieces before: a replay would start from changed values. Work on a copy there (x = x * -1 for "
                "x.mul_(-1))"
            )
        self.wrote.setdefault(k, wrote)


class _Handed(torch.autograd.Function):
    """The tensor, or a copy of it, for the function to do with as it likes: neither a leaf nor a view of one.

    Hooks that modules put on their arguments refuse leaves, and in-place layers refuse views of them.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, copies: bool) -> Tensor:
        return _copy(tensor) if copies else tensor.data

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def with_strides(tensor: Tensor, strides: Sequence[int] | None) -> Tensor:
    """The tensor in a layout that it had before something (a saved-tensor hook) laid it out anew."""
    if strides is None or tensor.layout != torch.strided or tensor.stride() == tuple(strides):
        return tensor
    return _empty(tensor, strides).copy_(tensor) if _has_own_place(tensor.shape, strides) else tensor


def share_memory(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether a tensor of the first stands in the memory of one of the others; True where that cannot be seen."""
    tensors = [t for t in (*some, *others) if isinstance(t, Tensor)]
    if any(t.layout != torch.strided for t in tensors):
        return True
    memory = {t.untyped_storage()._cdata for t in others if isinstance(t, Tensor)}
    return any(t.untyped_storage()._cdata in memory for t in some if isinstance(t, Tensor))


def _copy(tensor: Tensor) -> Tensor:
    """With the same strides, gaps included."""
    if tensor.layout != torch.strided:
        return tensor.clone()
    if _has_own_place(tensor.shape, tensor.stride()):
        return _empty(tensor, tensor.stride()).copy_(tensor)
    num_elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.as_strided((num_elements,), (1,)).clone()  # expanded, or windows that overlap
    return memory.as_strided(tensor.shape, tensor.stride(), 0)


def _empty(like: Tensor, strides: Sequence[int]) -> Tensor:
    return torch.empty_strided(like.shape, strides, dtype=like.dtype, device=like.device)


def _has_own_place(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether no two entries of a tensor with these strides share their memory."""
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return False
            reach += stride * (size - 1)
    return True
